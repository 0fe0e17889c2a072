"""Seeded requests against real servers: `--enable-deterministic-inference`, under which SGLang honours `sampling_seed`."""

import pytest
import torch

from serving import serve
from tiny_models import write_tiny_models

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="runs on the CPU platform")

TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6")


def body(prompt: int, seed: int, **params) -> dict:
    sampling = {"temperature": 1, "max_new_tokens": 24, "ignore_eos": True, "sampling_seed": seed, **params}
    return {"input_ids": [prompt, 7, 9], "sampling_params": sampling}


def test_seeded_requests_reproduce(tmp_path):
    models = write_tiny_models(tmp_path / "models")
    args = ("--dtype", "float32", "--speculative-algorithm", "NSD", "--speculative-draft-model-path", models.eagle, *TREE)
    with serve(models.target, *args, "--enable-deterministic-inference", log=tmp_path / "server.log") as server:
        bodies = [body(11, seed) for seed in range(6)]
        # Each kind by itself: SGLang's own sampler, which draws an answer's first token, goes through sorted probabilities
        # when any request of its batch has a filter, and then takes another token with the same seed.
        for kind in (bodies, [body(12, seed, top_p=0.9, top_k=50) for seed in range(4)]):
            serial = [server.generate(**one)["output_ids"] for one in kind]
            # Alone or among others, from the cache or not: a request's own seed and position decide.
            assert [answer["output_ids"] for answer in server.generate_all(kind[::-1])][::-1] == serial
            assert len({tuple(answer) for answer in serial}) == len(serial), "different seeds gave the same answer"
        # That sampler asserts that no request has a min_p.
        assert server.post("/generate", **body(11, 1, min_p=0.1)).status_code == 400
        rescued = [server.generate(**one)["meta_info"]["nsd_rescued"] for one in bodies]
        assert any(rescued), "nothing was rescued: the seeds of the gate were not tried"
