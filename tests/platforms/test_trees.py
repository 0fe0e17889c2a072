"""Draft trees against hand-written ones and against a walk over the drafter's own lists."""

import pytest
import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode

from nsd_sglang.platforms.cpu_trees import build_tree_kernel_efficient, verify_tree_greedy

TOPK, STEPS = 2, 3


def build(parent_list, selected, seq_lens, topk=TOPK, steps=STEPS):
    batch, n = selected.shape[0], selected.shape[1] + 1
    mask = torch.zeros(batch * n * n, dtype=torch.bool)
    positions = torch.empty(batch * n, dtype=torch.int64)
    links = torch.full((3, batch, n), -1)
    build_tree_kernel_efficient(
        parent_list, selected, seq_lens, mask, positions, *links, topk, steps, n, TreeMaskMode.QLEN_ONLY
    )
    return mask.view(batch, n, n), positions.view(batch, n), *links


def test_a_tree_by_hand():
    # Candidates 0, 1 hang below the root; step 1 expands both (2, 3 below 0 and 4, 5 below 1) and keeps 2 and 5;
    # step 2 expands those (6, 7 below 2 and 8, 9 below 5).
    parents = torch.tensor([[-1, 0, 1, 2, 5]])
    selected = torch.tensor([[0, 1, 2, 3, 5, 8]])
    mask, positions, index, child, sibling = build(parents, selected, torch.tensor([10]))
    # nodes: 1 = cand 0, 2 = cand 1, 3 = cand 2 (below 1), 4 = cand 3 (below 1), 5 = cand 5 (below 2), 6 = cand 8 (below 5)
    assert positions.tolist() == [[10, 11, 11, 12, 12, 12, 13]]
    assert index.tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert child.tolist() == [[1, 3, 5, -1, -1, 6, -1]]
    assert sibling.tolist() == [[-1, 2, -1, 4, -1, -1, -1]]
    seen = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}, {0, 2, 5, 6}]
    assert [set(row.nonzero()[:, 0].tolist()) for row in mask[0]] == seen


def test_a_chain_has_no_parents_to_look_up():
    mask, positions, _, child, sibling = build(
        torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0], [0]]), torch.tensor([4, 9]), topk=1, steps=1
    )
    assert positions.tolist() == [[4, 5], [9, 10]]
    assert child.tolist() == [[1, -1]] * 2 and (sibling == -1).all()
    assert mask.tolist() == [[[True, False], [True, True]]] * 2


def test_a_child_whose_parent_was_not_selected_is_out_of_reach():
    mask, positions, _, child, sibling = build(torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 4]]), torch.tensor([7]), steps=2)
    assert child.tolist() == [[1, -1, -1]] and (sibling == -1).all()
    assert positions.tolist() == [[7, 8, 8]] and mask[0, 2].tolist() == [True, False, True]


def test_another_mask_layout_is_refused():
    links = torch.full((3, 1, 2), -1)
    with pytest.raises(NotImplementedError, match="QLEN_ONLY"):
        build_tree_kernel_efficient(
            torch.empty(1, 0), torch.tensor([[0]]), torch.tensor([1]), None, None, *links, 1, 1, 2, TreeMaskMode.FULL_MASK
        )


def random_draft(generator, topk, steps, n):
    """What a drafter hands over for one request, grown as SGLang's does, and the parent of every candidate."""
    scores, parents, owner = [torch.rand(topk, generator=generator)], [-1] + list(range(topk)), [-1] * topk
    beam, beam_scores = list(range(topk)), scores[0]
    for step in range(1, steps):
        expanded = beam_scores[:, None] * torch.rand(topk, topk, generator=generator)
        first = topk + (step - 1) * topk * topk
        owner += [beam[i // topk] for i in range(topk * topk)]
        scores.append(expanded.flatten())
        best = expanded.flatten().topk(topk)
        beam, beam_scores = (best.indices + first).tolist(), best.values
        parents += beam if step < steps - 1 else []
    selected = torch.cat(scores).topk(n - 1).indices.sort().values
    return torch.tensor(parents if steps > 1 else []), selected, owner


@pytest.mark.parametrize("topk, steps, n", [(3, 3, 10), (4, 5, 16), (2, 4, 7), (1, 3, 4)])
def test_random_trees_agree_with_a_walk(topk, steps, n):
    generator = torch.Generator().manual_seed(topk * 100 + steps)
    drafts = [random_draft(generator, topk, steps, n) for _ in range(6)]
    seq_lens = torch.randint(1, 50, (6,), generator=generator)
    mask, positions, index, child, sibling = build(
        torch.stack([d[0] for d in drafts]), torch.stack([d[1] for d in drafts]), seq_lens, topk, steps
    )
    assert index.flatten().tolist() == list(range(6 * n))
    for b, (_, selected, owner) in enumerate(drafts):
        node_of = {-1: 0} | {c: i + 1 for i, c in enumerate(selected.tolist())}
        for candidate, node in node_of.items():
            path, c = {0, node}, candidate
            while c != -1:
                path.add(node_of[c])
                c = owner[c]
            assert set(mask[b, node].nonzero()[:, 0].tolist()) == path
            assert positions[b, node] == seq_lens[b] + len(path) - 1
            children = sorted(node_of[k] for k in selected.tolist() if owner[k] == candidate)
            walked, at = [], int(child[b, node])
            while at != -1:
                walked.append(at)
                at = int(sibling[b, at])
            assert walked == children


def test_greedy_follows_the_target_until_it_leaves_the_tree():
    parents, selected = torch.tensor([[-1, 0, 1, 2, 5]] * 2), torch.tensor([[0, 1, 2, 3, 5, 8]] * 2)
    _, _, index, child, sibling = build(parents, selected, torch.tensor([10, 20]))
    tokens = torch.tensor([[50, 11, 12, 13, 14, 15, 16]] * 2)
    target = torch.zeros(2, 7, dtype=torch.int64)
    target[0, [0, 2, 5, 6]] = torch.tensor([12, 15, 16, 77])  # 2 -> 5 -> 6, then a bonus
    target[1, 0] = 99  # leaves at once
    predicts = torch.zeros(14, dtype=torch.int32)
    accept = torch.full((2, 4), -1, dtype=torch.int32)
    count = torch.empty(2, dtype=torch.int32)
    verify_tree_greedy(predicts, accept, count, tokens, index, child, sibling, target)
    assert accept.tolist() == [[0, 2, 5, 6], [7, -1, -1, -1]] and count.tolist() == [3, 0]
    assert predicts[[0, 2, 5, 6, 7]].tolist() == [12, 15, 16, 77, 99]


def test_greedy_stops_at_the_depth_of_the_answer():
    _, _, index, child, sibling = build(torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2]]), torch.tensor([0]), 1, 3)
    tokens, target = torch.tensor([[9, 1, 2, 3]]), torch.tensor([[1, 2, 3, 4]])
    predicts, accept = torch.zeros(4, dtype=torch.int32), torch.full((1, 3), -1, dtype=torch.int32)
    count = torch.empty(1, dtype=torch.int32)
    verify_tree_greedy(predicts, accept, count, tokens, index, child, sibling, target)
    assert count.tolist() == [2] and accept.tolist() == [[0, 1, 2]] and predicts[:3].tolist() == [1, 2, 3]
