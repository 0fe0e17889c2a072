"""An answer that ends inside a verified block, with SGLang's own `Req`."""

from array import array

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.sampling.sampling_params import SamplingParams

from nsd_sglang.patches.finish_state import _within_the_answer

STOP, THINK_END = 7, 9


def finished(update, output, block, abort=False, **params):
    """A request that had `output` and now gets `block` of accepted tokens."""
    sampling = SamplingParams(max_new_tokens=6, **params)
    sampling.normalize(None)
    req = Req("r", "", array("q", [1, 2]), sampling, require_reasoning=True, eos_token_ids={STOP}, vocab_size=100)
    for tokens in (output, block):
        req.output_ids.extend(tokens)
        req.update_reasoning_tokens(list(tokens), [THINK_END])
    req.to_finish = FINISH_ABORT("stopped") if abort else None
    update(req, len(block))
    return req


@pytest.mark.parametrize("output, block, answer, reasoning", [
    ([1, 2], [3, STOP, 4, 5], [1, 2, 3, STOP], 4),  # ends before its reasoning does
    ([1, 2, 3, 4], [3, 3, 3, 3], [1, 2, 3, 4, 3, 3], 6),  # the longest answer, inside its reasoning
    ([1, THINK_END], [3, STOP, 4], [1, THINK_END, 3, STOP], 2),
    ([1, 2], [3, STOP, THINK_END], [1, 2, 3, STOP], 4),  # the reasoning's end lies beyond the answer's
])
def test_reasoning_tokens_are_no_more_than_the_answer_has(output, block, answer, reasoning):
    req = finished(_within_the_answer(Req.update_finish_state), output, block)
    assert list(req.output_ids_through_stop) == answer
    assert req.reasoning_tokens == reasoning


@pytest.mark.parametrize("output, block, answer", [
    ([1, 2, 3, 4], [5, 5, 5, 5], [1, 2, 3, 4, 5, 5]),
    ([1, 2], [STOP, 5], [1, 2, STOP]),
    ([1, 2], [3, 4], [1, 2, 3, 4]),
    ([], [3], [3]),
])
def test_an_aborted_answer_holds_nothing_beyond_its_end(output, block, answer):
    req = finished(_within_the_answer(Req.update_finish_state), output, block, abort=True)
    assert req.finished_reason.to_json()["type"] == "abort" and req.to_finish is None
    assert list(req.output_ids_through_stop) == answer and req.reasoning_tokens <= len(answer)


def test_what_goes_on_is_left_alone():
    req = finished(_within_the_answer(Req.update_finish_state), [1], [2, 3])
    assert (req.finished_reason, req.finished_len, req.reasoning_tokens) == (None, None, 3)


def test_sglang_counts_beyond_the_end():
    """When this fails, SGLang has mended it and the patch can go."""
    assert finished(Req.update_finish_state, [1, 2], [3, STOP, 4, 5]).reasoning_tokens == 6
    assert len(finished(Req.update_finish_state, [1, 2, 3, 4], [5] * 4, abort=True).output_ids_through_stop) == 8
