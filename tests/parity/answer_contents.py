"""What an answer carries besides its text is what plain decoding puts there: log-probabilities, hidden states,
chunks. Greedy, in float32, so that values can be compared."""

import numpy as np
import pytest

PROMPTS = [[256, *(17 * i % 250 for i in range(n, n + 9 + n))] for n in range(6)]
TOLERANCE = 1e-4
IDS = [1, 2, 77, 300]


def body(prompt, temperature=0, **more):
    sampling = {"temperature": temperature, "max_new_tokens": 24, "ignore_eos": True} | more.pop("sampling", {})
    return {"input_ids": prompt, "sampling_params": sampling, **more}


def logprob_bodies(**sampling):
    """Every prompt, with what is asked differing from one to the next so that batches are ragged."""
    asks = [
        {"top_logprobs_num": 4, "token_ids_logprob": IDS, "logprob_start_len": 0},
        {"top_logprobs_num": 0, "token_ids_logprob": IDS[:1]},
        {"top_logprobs_num": 2, "logprob_start_len": 3},
    ]
    bodies = [body(prompt, return_logprob=True, sampling=sampling, **asks[i % 3]) for i, prompt in enumerate(PROMPTS)]
    return [*bodies[:2], body(PROMPTS[0], sampling=sampling), *bodies[2:]]


def assert_same_logprobs(one, other):
    names = [f"{side}_{what}" for side in ("input", "output") for what in ("token_logprobs", "top_logprobs", "token_ids_logprobs")]
    for name in names:
        a, b = one["meta_info"].get(name), other["meta_info"].get(name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert len(a) == len(b), name
            for entry, expected in zip(flat(a), flat(b)):
                assert entry[1] == expected[1], name
                assert (entry[0] is None) == (expected[0] is None), name
                assert entry[0] is None or abs(entry[0] - expected[0]) < TOLERANCE, (name, entry, expected)


def flat(entries):
    """[log-probability, token, text] of every position, also where a position has a list of them or none."""
    for entry in entries:
        if entry is None or isinstance(entry[0], (list, tuple)):
            yield from entry or ()
        else:
            yield entry


@pytest.mark.parametrize("sampling", [{}, {"stop": ["a", "e", "3"]}, {"max_new_tokens": 1}], ids=["plain", "stop", "one"])
def test_logprobs(sampling, nsd, plain):
    bodies = logprob_bodies(**sampling)
    answers = [nsd.generate(**one) for one in bodies[:2]] + nsd.generate_all(bodies[2:])
    for answer, expected in zip(answers, plain.generate_all(bodies)):
        assert answer["output_ids"] == expected["output_ids"]
        assert_same_logprobs(answer, expected)
        if "output_token_logprobs" in answer["meta_info"]:
            assert len(answer["meta_info"]["output_token_logprobs"]) == answer["meta_info"]["completion_tokens"]


def test_logprobs_of_sampled_tokens_are_the_targets(nsd, plain):
    """Also of rescued tokens: the target's log-probability of the token, as a prefill of the answer gives it."""
    answers = nsd.generate_all([body(p, 1, return_logprob=True, top_logprobs_num=3, sampling={"max_new_tokens": 60}) for p in PROMPTS])
    assert sum(answer["meta_info"]["nsd_rescued"] for answer in answers) > 0
    scored = [body(p + a["output_ids"], 1, return_logprob=True, logprob_start_len=0) for p, a in zip(PROMPTS, answers)]
    for prompt, answer, score in zip(PROMPTS, answers, plain.generate_all(scored)):
        own = answer["meta_info"]["output_token_logprobs"]
        again = score["meta_info"]["input_token_logprobs"][len(prompt) :]
        assert [entry[1] for entry in own] == answer["output_ids"]
        assert np.allclose([entry[0] for entry in own], [entry[0] for entry in again], atol=TOLERANCE)


@pytest.mark.parametrize("path, ask", [
    ("/v1/completions", {"prompt": "hello", "logprobs": 3, "echo": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 3}),
])
def test_openai_logprobs(path, ask, nsd, plain):
    ask = ask | {"model": "m", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    one, other = (server.post(path, **ask).json()["choices"][0] for server in (nsd, plain))
    assert one["logprobs"] is not None
    assert_close(one, other)


def assert_close(one, other):
    """Equal, numbers within the tolerance."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_close(a, b)
    elif isinstance(one, float):
        assert abs(one - other) < TOLERANCE
    else:
        assert one == other


def test_hidden_states(nsd, plain):
    """A list for the prefill (of what was not cached), then one row a token."""
    bodies = [body(prompt, return_hidden_states=True) for prompt in PROMPTS]
    bodies += [body(PROMPTS[0], return_hidden_states=True, sampling={"stop": ["a", "e", "3"]}), body(PROMPTS[1])]
    answers = [nsd.generate(**bodies[0])] + nsd.generate_all(bodies[1:])
    for answer, expected in zip(answers, plain.generate_all(bodies)):
        assert answer["output_ids"] == expected["output_ids"]
        own, theirs = answer["meta_info"].get("hidden_states"), expected["meta_info"].get("hidden_states")
        if theirs is None:
            assert own is None
            continue
        rows, expected_rows = ([states[0][-1], *states[1:]] for states in (own, theirs))
        assert len(rows) == len(expected_rows) == answer["meta_info"]["completion_tokens"]
        assert np.allclose(rows, expected_rows, atol=1e-3), np.abs(np.subtract(rows, expected_rows)).max()


def test_a_stream_adds_up_to_the_answer(nsd, plain):
    for one in logprob_bodies(stop=["3"]):
        chunks = nsd.stream("/generate", **one)
        whole, expected = nsd.generate(**one), plain.generate(**one)
        assert chunks[-1]["text"] == whole["text"] == expected["text"]
        assert chunks[-1]["output_ids"] == whole["output_ids"] == expected["output_ids"]
        assert_same_logprobs(chunks[-1], expected)
        counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts) and counts[-1] == len(whole["output_ids"])
        assert all(whole["text"].startswith(chunk["text"].rstrip("\ufffd")) for chunk in chunks)
