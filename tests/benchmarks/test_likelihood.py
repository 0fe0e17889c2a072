"""Likelihood and entropy from a truncated list contain the values of the whole distribution, and are exact where they say so."""

import base64
import math

import numpy as np
import pytest

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.likelihood import Transform, bounds, score

VOCAB = 400


def distributions(count=24, seed=3):
    """Log probabilities [count, VOCAB] from sharp to nearly flat."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, VOCAB)) * np.linspace(0.2, 6, count)[:, None]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def transformed(logs: np.ndarray, transform: Transform) -> np.ndarray:
    """The whole transformed distribution of one position, by the definition."""
    p = np.exp(logs / transform.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if transform.top_k:
        p[order[transform.top_k :]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before > transform.top_p]] = 0
    return p / p.sum()


def exact(table, tokens, transform):
    logprob, entropy, outside = 0.0, 0.0, 0
    for logs, token in zip(table, tokens):
        p = transformed(logs, transform)
        entropy -= sum(x * math.log(x) for x in p if x > 0)
        if p[token] > 0:
            logprob += math.log(p[token])
        else:
            outside += 1
    return logprob, entropy, outside


def measured(table, tokens, transform, top):
    listed = -np.sort(-table, axis=1)[:, :top]
    return bounds(table[np.arange(len(tokens)), tokens], listed, VOCAB, transform)


TRANSFORMS = [
    Transform(),
    Transform(0.5),
    Transform(1.7),
    Transform(1.0, 20),
    Transform(0.7, 50, 0.9),
    Transform(1.0, None, 0.5),
    Transform(1.3, None, 0.97),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("top", [64, 250, VOCAB])
def test_the_interval_holds_the_whole_distribution(transform, top):
    table = distributions()
    tokens = np.random.default_rng(0).integers(VOCAB, size=len(table))
    tokens[::2] = table.argmax(axis=1)[::2]
    logprob, entropy, outside = exact(table, tokens, transform)
    found = measured(table, tokens, transform, top)
    assert found.outside == outside or (transform.top_p < 1 and top < VOCAB)
    if found.outside == outside:
        assert abs(found.logprob - logprob) <= found.logprob_error + 1e-6
    assert abs(found.entropy - entropy) <= found.entropy_error + 1e-6
    if top == VOCAB:
        assert found.logprob_error < 1e-9 and found.entropy_error < 1e-9


def test_at_temperature_one_only_the_entropy_is_uncertain():
    table = distributions()
    tokens = np.arange(len(table))
    found = measured(table, tokens, Transform(), 64)
    assert found.logprob == pytest.approx(table[np.arange(len(tokens)), tokens].sum(), abs=1e-9)
    assert found.logprob_error < 1e-9
    assert 0 < found.entropy_error < 0.2 * found.entropy
    assert measured(table, tokens, Transform(), 250).entropy_error < 0.5 * found.entropy_error


def test_bounds_meet_where_the_rest_is_flat_or_empty():
    flat = np.full((1, VOCAB), -math.log(VOCAB))
    found = measured(flat, [0], Transform(), 10)
    assert found.entropy == pytest.approx(math.log(VOCAB)) and found.entropy_error < 1e-6
    certain = np.full((1, VOCAB), -1000.0)
    certain[0, 5] = 0.0
    found = measured(certain, [5], Transform(0.5), 10)
    assert (found.logprob, found.entropy, found.entropy_error) == (0.0, 0.0, 0.0)


def test_float32_lists_do_not_push_a_token_out():
    table = distributions().astype(np.float32).astype(np.float64)
    tokens = np.argsort(-table, axis=1)[:, 19]
    assert measured(table, tokens, Transform(1.0, 20), 64).outside == 0
    assert measured(table, np.argsort(-table, axis=1)[:, 20], Transform(1.0, 20), 64).outside == len(table)


@pytest.mark.parametrize(
    "params, word",
    [({"temperature": 0}, "--temperature"), ({"frequency_penalty": 0.5}, "frequency_penalty"), ({"min_p": 0.1}, "min_p"), ({"regex": "a"}, "regex")],
)
def test_what_cannot_be_scored_is_refused(params, word):
    with pytest.raises(BenchError, match=word):
        Transform.of({"temperature": 1.0, **params})


def test_sampling_parameters_are_read():
    harmless = {"max_new_tokens": 5, "ignore_eos": True, "min_p": 0, "repetition_penalty": 1.0, "custom_params": {"nsd_threshold": 0.5}}
    assert Transform.of({"temperature": 0.5, "top_k": 7, "top_p": 0.9} | harmless) == Transform(0.5, 7, 0.9)
    assert Transform.of({"top_k": -1}) == Transform()


def reply(tokens, logprobs, listed):
    flat = base64.b64encode(np.asarray(listed, dtype="<f4").tobytes()).decode()
    chosen = [[None, 1, None], *([p, t, None] for p, t in zip(logprobs, tokens))]
    return {"meta_info": {"input_token_logprobs": chosen, "input_top_logprobs_shape": list(np.shape(listed)), "input_top_logprobs_val_flat_b64": flat}}


def test_the_request_and_the_reply():
    table = distributions(3)
    tokens = [4, 5, 6]
    bodies = []

    def ask(body):
        bodies.append(body)
        listed = -np.sort(-table, axis=1)[:, : body["top_logprobs_num"]]
        return reply(tokens, table[range(3), tokens], listed)

    found = score(ask, [1, 2, 3], tokens, Transform(), VOCAB, top=64)
    assert found.logprob == pytest.approx(table[range(3), tokens].sum())
    (body,) = bodies
    assert body["input_ids"] == [1, 2, 3, 4, 5, 6] and body["logprob_start_len"] == 2
    assert body["sampling_params"]["max_new_tokens"] == 0 and body["top_logprobs_num"] == 64
    # Never more than there are, and all that top-k keeps.
    score(ask, [1, 2, 3], tokens, Transform(), VOCAB)
    score(ask, [1, 2, 3], tokens, Transform(1.0, 100), VOCAB, top=64)
    assert [body["top_logprobs_num"] for body in bodies[1:]] == [VOCAB, 100]


@pytest.mark.parametrize("broken", [{}, {"meta_info": {}}, reply([4, 5, 9], [-1, -1, -1], np.zeros((3, 2))), reply([4, 5, 6], [-1, -1, -1], np.zeros((2, 2)))])
def test_a_useless_reply_is_an_error(broken):
    with pytest.raises(BenchError, match="no usable log probabilities"):
        score(lambda body: broken, [1, 2], [4, 5, 6], Transform(), VOCAB)
