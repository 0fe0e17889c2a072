"""Key-value slots against loops over requests."""

import torch

from nsd_sglang.platforms import cpu_slots as slots

TABLE = torch.arange(100, 160, dtype=torch.int32).view(3, 20)
ROWS = torch.tensor([2, 0])


def test_extend_locs_are_the_slots_between_two_positions():
    out = slots.assign_extend_cache_locs(ROWS, TABLE, torch.tensor([3, 5]), torch.tensor([7, 9]), 2, 4, "cpu")
    assert out.dtype == torch.int64
    assert out.tolist() == [143, 144, 145, 146, 105, 106, 107, 108]


def test_slots_are_written_to_ragged_positions():
    table = TABLE.clone()
    slots.assign_req_to_token_pool(ROWS, table, torch.tensor([1, 4]), torch.tensor([3, 4 + 3]), torch.arange(5), 2)
    expected = TABLE.clone()
    expected[2, 1:3] = torch.tensor([0, 1])
    expected[0, 4:7] = torch.tensor([2, 3, 4])
    assert torch.equal(table, expected)


def test_nothing_to_write_leaves_the_table():
    table = TABLE.clone()
    same = torch.tensor([4, 4])
    slots.assign_req_to_token_pool(ROWS, table, same, same, torch.empty(0, dtype=torch.int64), 2)
    assert torch.equal(table, TABLE)


def test_draft_slots_follow_the_prefix_and_positions_are_its_length():
    out, positions = torch.empty(8, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    mrope = torch.empty(3, 4, dtype=torch.int64)
    slots.assign_draft_cache_locs_contiguous(ROWS, TABLE, torch.tensor([6, 2]), out, 2, 2, positions, mrope)
    assert out.tolist() == [146, 147, 148, 149, 102, 103, 104, 105]
    assert positions.tolist() == [6, 6, 2, 2]
    assert mrope.tolist() == [[6, 6, 2, 2]] * 3


def test_front_and_accepted_slots_are_packed_in_the_same_order():
    window = torch.arange(50, 62)  # two requests, six nodes each
    accept_index = torch.tensor([[0, 2, 5, -1], [6, -1, -1, -1]], dtype=torch.int32)
    front, accepted = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    slots.fill_front_out_cache_loc(torch.tensor([3, 1]), window, front)
    slots.fill_accept_out_cache_loc(accept_index, window, accepted, 8)
    assert front.tolist() == [50, 51, 52, 56, 0, 0, 0, 0]
    assert accepted.tolist() == [50, 52, 55, 56, 0, 0, 0, 0]


def test_bonus_token_is_the_last_accepted_one():
    bonus = torch.empty(2, dtype=torch.int32)
    tokens = torch.tensor([[7, 8, 9, 1], [4, 5, 6, 1]], dtype=torch.int32)
    slots.fill_bonus_tokens(tokens, torch.tensor([3, 1], dtype=torch.int32), bonus, 4, 2)
    assert bonus.tolist() == [9, 4]


def test_relayed_rows_without_hidden_states():
    p, index, tokens = torch.rand(5, 3), torch.arange(15).view(5, 3), torch.arange(5)
    out = slots.gather_spec_extras(torch.tensor([4, 1]), p, index, tokens, None)
    assert out[1].tolist() == [[12, 13, 14], [3, 4, 5]] and out[2].tolist() == [4, 1] and out[3] is None
