"""An answer that ends inside a verified block, with SGLang's own `Req`."""

import random
from array import array
from types import SimpleNamespace

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


# Tokens are letters: 0 is "a".
LETTERS = SimpleNamespace(
    decode=lambda ids, **_: "".join(chr(97 + i) for i in ids),
    encode=lambda text, **_: [ord(letter) - 97 for letter in text],
    eos_token_id=STOP,
    additional_stop_token_ids=None,
)


def ended(update, tokens, sizes, params):
    """Reason, length and tokens of an answer that gets `tokens` in blocks of `sizes`; None where it goes on."""
    sampling = SamplingParams(**params)
    sampling.normalize(LETTERS)
    req = Req("r", "", array("q", [1, 2]), sampling, eos_token_ids={STOP}, vocab_size=100)
    req.tokenizer = LETTERS
    for size in sizes:
        block = tokens[len(req.output_ids) :][:size]
        req.output_ids.extend(block)
        update(req, len(block))
        if req.finished():
            return req.finished_reason.to_json(), list(req.output_ids_through_stop), len(req.output_ids)
    return None


def test_a_block_ends_an_answer_where_its_tokens_one_by_one_do():
    dice = random.Random(5)
    differs = 0
    for _ in range(3000):
        tokens = [dice.randrange(9) for _ in range(10)]
        stops = ["".join(dice.choice("abcd") for _ in range(dice.randrange(1, 4))) for _ in range(dice.randrange(3))]
        params = {"max_new_tokens": dice.randrange(1, 11), "stop": stops, "ignore_eos": dice.random() < 0.3}
        params |= {"stop_token_ids": dice.sample(range(9), dice.randrange(3))}
        params |= {"stop_regex": [[], [], ["[ef]g"], ["c$", "bb+"]][dice.randrange(4)]}
        sizes = [1] + [dice.randrange(1, 6) for _ in range(9)]
        one_by_one = ended(Req.update_finish_state, tokens, [1] * 10, params)
        in_blocks = ended(_within_the_answer(Req.update_finish_state), tokens, sizes, params)
        assert (in_blocks and in_blocks[:2]) == (one_by_one and one_by_one[:2]), (tokens, sizes, params)
        assert in_blocks is None or in_blocks[2] >= len(in_blocks[1])  # the block stays, only its end is found
        differs += ended(Req.update_finish_state, tokens, sizes, params) != in_blocks
    assert differs > 20  # otherwise SGLang has mended it and that part of the patch can go


def test_a_grammar_that_ends_with_its_block_does_not_end_it_before():
    for stop, answer in ((None, [1, 2, 3, 4]), (3, [1, 2, 3])):
        sampling = SamplingParams(max_new_tokens=20, stop_token_ids=[stop] if stop else None)
        sampling.normalize(None)
        req = Req("r", "", array("q", [1, 2]), sampling, eos_token_ids={STOP}, vocab_size=100)
        req.grammar = grammar = SimpleNamespace(is_terminated=lambda: True)
        req.output_ids.extend([1, 2, 3, 4])
        _within_the_answer(Req.update_finish_state)(req, 3)
        assert list(req.output_ids_through_stop) == answer and req.grammar is grammar
