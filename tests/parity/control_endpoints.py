"""Endpoints that act on a running server: abort, flush, weight updates."""

import json
from concurrent.futures import ThreadPoolExecutor

import requests

from tiny_models import write_tiny_models

PROMPT = [256, *range(40)]


def long(rid, temperature=1):
    sampling = {"temperature": temperature, "max_new_tokens": 900, "ignore_eos": True}
    return {"input_ids": PROMPT, "sampling_params": sampling, "rid": rid}


def greedy(server, prompts=4):
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    bodies = [{"input_ids": [256, *range(n, n + 10)], "sampling_params": sampling} for n in range(prompts)]
    answers = server.generate_all(bodies)
    return [answer["output_ids"] for answer in answers]


def test_abort_ends_one_request_and_leaves_the_others(nsd, plain):
    expected = greedy(plain)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(nsd.generate, **long(f"stays-{i}")) for i in range(3)]
        stream = requests.post(nsd.url + "/generate", json=long("goes") | {"stream": True}, stream=True, timeout=120)
        chunks = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith(b"data: {"))
        assert next(chunks)["meta_info"]["finish_reason"] is None
        assert nsd.post("/abort_request", rid="goes").status_code == 200
        during = greedy(nsd)
        last = [*chunks][-1]
    assert during == expected
    assert last["meta_info"]["finish_reason"]["type"] == "abort" and 0 < len(last["output_ids"]) < 900
    for other in others:
        assert other.result()["meta_info"]["finish_reason"]["type"] == "length"
    nsd.flush_cache()
    assert nsd.post("/abort_request", rid="", abort_all=True).status_code == 200
    assert greedy(nsd) == expected


def test_flush_cache_forgets_prefixes(nsd):
    ask = {"input_ids": [256, *range(100, 160)], "sampling_params": {"temperature": 1, "max_new_tokens": 4}}
    nsd.flush_cache()
    assert nsd.generate(**ask)["meta_info"]["cached_tokens"] == 0
    assert nsd.generate(**ask)["meta_info"]["cached_tokens"] > 0
    nsd.flush_cache()
    assert nsd.generate(**ask)["meta_info"]["cached_tokens"] == 0


def test_weights_from_disk(nsd, plain, models, tmp_path):
    """The target's weights are replaced and put back: greedy answers are plain decoding's with the same weights."""
    before = greedy(plain)
    other = write_tiny_models(tmp_path / "other", seed=7).target
    for path in (other, models.target):
        for server in (nsd, plain):
            answer = server.post("/update_weights_from_disk", model_path=path)
            assert answer.json()["success"], answer.text
        assert greedy(nsd) == greedy(plain)
        assert (greedy(nsd) == before) == (path == models.target)
