"""A retracted request keeps its penalties through its second prefill."""

from types import SimpleNamespace

import torch

from nsd_sglang.restored_penalties import restore_penalties_

V = 9


def request(output_ids, minimum=0):
    params = SimpleNamespace(
        frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=1.5, min_new_tokens=minimum, stop_token_ids={7}
    )
    return SimpleNamespace(sampling_params=params, output_ids=output_ids, eos_token_ids=None, tokenizer=None)


def batch_of(*reqs):
    info = SimpleNamespace(
        acc_additive_penalties=torch.full((len(reqs), V), -9.0), acc_scaling_penalties=torch.full((len(reqs), V), 9.0)
    )
    return SimpleNamespace(reqs=reqs, sampling_info=info)


def test_the_answer_so_far_is_counted_and_new_requests_are_left_alone():
    batch = batch_of(request([]), request([3, 4, 3], minimum=4), request([0], minimum=1))
    restore_penalties_(batch)
    info = batch.sampling_info
    assert (info.acc_additive_penalties[0] == -9).all() and (info.acc_scaling_penalties[0] == 9).all()
    expected = torch.zeros(2, V)
    expected[0, 3], expected[0, 4], expected[0, 7], expected[1, 0] = -1.25, -0.75, float("-inf"), -0.75
    assert torch.equal(info.acc_additive_penalties[1:], expected)
    assert info.acc_scaling_penalties[1].tolist() == [1, 1, 1, 1.5, 1.5, 1, 1, 1, 1]


def test_a_batch_without_penalties_is_left_alone():
    batch = batch_of(request([3]))
    batch.sampling_info.acc_additive_penalties = None
    restore_penalties_(batch)
    assert (batch.sampling_info.acc_scaling_penalties == 9).all()
    batch.sampling_info = None  # an idle batch
    restore_penalties_(batch)
