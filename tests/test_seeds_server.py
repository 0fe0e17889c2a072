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
        bodies = [body(11, seed) for seed in range(6)] + [body(12, seed, top_p=0.9) for seed in range(2)]
        serial = [server.generate(**one)["output_ids"] for one in bodies]
        # Alone or among others, from the cache or not: a request's own seed and position decide.
        assert [answer["output_ids"] for answer in server.generate_all(bodies[::-1])][::-1] == serial
        assert len({tuple(answer) for answer in serial}) == len(serial), "different seeds gave the same answer"
        rescued = [server.generate(**one)["meta_info"]["nsd_rescued"] for one in bodies]
        assert any(rescued), "nothing was rescued: the seeds of the gate were not tried"
