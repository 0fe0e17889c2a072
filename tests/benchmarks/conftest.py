"""A complete set of settings, and checkpoints that are good enough to be checked."""

import json

import pytest
from bench_inputs import write_prompts

from nsd_sglang.benchmarks.settings import Settings


@pytest.fixture
def settings(tmp_path):
    """Small and complete; ``replace`` of dataclasses changes it."""
    return Settings(
        model=str(tmp_path / "target"),
        draft=str(tmp_path / "draft"),
        tokenizer=str(tmp_path / "target"),
        family="eagle",
        kinds=["plain", "stock", "rejection", "nsd"],
        thresholds=[0.8, 0.95],
        sampled_thresholds=[0.95],
        proposals=["topk", "sampled"],
        candidates=8,
        num_steps=4,
        eagle_topk=3,
        num_draft_tokens=12,
        concurrency=[1, 8],
        num_prompts=[2, 16],
        ablation_concurrency=8,
        repeats=3,
        dataset="custom",
        dataset_path=str(tmp_path / "prompts.jsonl"),
        apply_chat_template=False,
        input_len=64,
        output_len=32,
        stop_at_eos=False,
        temperature=1.0,
        request_body={},
        warm_up_requests=2,
        server_args=["--dtype", "bfloat16"],
        environment={"HF_HUB_OFFLINE": "1"},
        seed=5,
        suites=["comparison"],
    )


@pytest.fixture
def checkpoints(tmp_path):
    """A target and an EAGLE draft as far as their config.json, and three prompts."""
    for name, architecture in (("target", "LlamaForCausalLM"), ("draft", "LlamaForCausalLMEagle")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [architecture], "vocab_size": 100}))
    write_prompts(tmp_path / "prompts.jsonl", ["one", "two", "three"])
    return tmp_path
