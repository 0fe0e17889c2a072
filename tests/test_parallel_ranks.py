"""Tensor parallelism over gloo: the ranks draw the same proposals and commit the same tokens at temperature 1."""

import pytest
import torch

from serving import serve
from tiny_models import write_tiny_models

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="two ranks on CPUs")

CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
PROMPTS = [[256, *(17 * i % 250 for i in range(n, n + 12))] for n in range(8)]
# Options that make a step draw more random numbers, or none: which of them a batch holds changes from step to step.
OPTIONS = ({}, {"nsd_epsilon": 0.05}, {"nsd_threshold": 0.9}, {"nsd_threshold": 0.9, "nsd_protect_stop": True})


def test_two_ranks_agree_at_temperature_1(tmp_path):
    """The draft is the target, so standard verification accepts whatever it draws. Only rank 0's verdict counts, but each
    rank runs the target on the tokens that it drew itself: were they not the same, the target's sum over both ranks would
    be of two different texts, and the drafts would be rejected."""
    models = write_tiny_models(tmp_path / "models")
    nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", "0", "--nsd-max-threshold", "1", "--nsd-candidates", "320")
    draft = ("--speculative-draft-model-path", models.target + "/.", *CHAIN, "--tp", "2")
    with serve(models.target, "--dtype", "float32", *nsd, *draft, log=tmp_path / "server.log", timeout=300) as server:
        bodies = []
        for i in range(40):
            sampling = {"temperature": 1, "max_new_tokens": 8 + i, "ignore_eos": True, "custom_params": OPTIONS[i % 4]}
            if i % 5 == 4:
                sampling["temperature"] = 0
            bodies.append({"input_ids": PROMPTS[i % 8], "sampling_params": sampling})
        answers = server.generate_all(bodies)
        assert [len(answer["output_ids"]) for answer in answers] == [8 + i for i in range(40)]
        accepted = sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers)
        drafted = sum(answer["meta_info"]["spec_num_proposed_drafts"] for answer in answers)
        assert accepted > 0.98 * drafted > 0
        greedy = [tuple(answer["output_ids"][:12]) for answer, body in zip(answers, bodies) if body["sampling_params"]["temperature"] == 0]
        again = [tuple(server.generate(**body)["output_ids"][:12]) for body in bodies if body["sampling_params"]["temperature"] == 0]
        assert greedy == again
