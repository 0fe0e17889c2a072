"""What is wrong is told in one line that names the option, before anything starts and without leaving a directory behind."""

import json

import pytest
from bench_inputs import write_prompts

from nsd_sglang import cli
from nsd_sglang.benchmarks import command


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    monkeypatch.setattr(command, "execute", lambda context: pytest.fail("the benchmark was started"))


@pytest.fixture
def pair(checkpoints):
    return [
        *("--model", str(checkpoints / "target"), "--draft", str(checkpoints / "draft"), "--num-prompts", "3"),
        *("--dataset-path", str(checkpoints / "prompts.jsonl"), "--output", str(checkpoints / "out")),
    ]


def refused(capsys, *words):
    try:
        code = cli.main(["bench", *words])
    except SystemExit as left:
        code = left.code
    err = capsys.readouterr().err
    assert code == 2, err
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--thresholds", "0.8,1.5", "0 to 1"),
        ("--concurrency", "0", "1 to 4096"),
        ("--concurrency", "1,,8", "a whole number"),
        ("--repeats", "0", "1 to 100"),
        ("--num-prompts", "many", "a whole number"),
        ("--temperature", "-1", "0 to 2"),
        ("--output-len", "3", "4 to"),
        ("--arms", "plain,best", "plain, stock, rejection, nsd"),
        ("--suites", "comparison,comparison", "comparison, ablation"),
        ("--proposals", "greedy", "topk, sampled"),
        ("--request-body", "[1]", "a JSON object"),
        ("--request-body", "{", "a JSON object"),
        ("--dataset", "alpaca", "sharegpt"),
    ],
)
def test_values_that_are_not_accepted(capsys, option, value, accepted):
    line = refused(capsys, f"{option}={value}")
    assert option in line and accepted in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model=/no/such/model"], "--model /no/such/model: there is no such folder"),
        (["--draft=./none"], "--draft ./none: there is no such folder"),
        (["--dataset-path=/no/file.jsonl"], "--dataset-path /no/file.jsonl: there is no such file"),
        (["--num-prompts=4"], "--num-prompts 4:"),
        (["--num-prompts=1,2"], "--num-prompts: 2 numbers; give one, or one for each of the 3 of --concurrency"),
        (["--ablation-concurrency=7"], "--ablation-concurrency 7: give one of --concurrency, 1, 8, 32"),
        (["--eagle-topk=1", "--num-draft-tokens=9"], "--num-draft-tokens 9: with --eagle-topk 1 it is --num-steps plus one"),
        (["--candidates=2"], "--candidates 2: give --eagle-topk, 4, or more"),
        (["--drafter=standalone"], "--drafter standalone does not fit"),
        (["--server-args=--tp '2"], "--server-args: No closing quotation"),
        (["--output=/dev/null/x"], "--output /dev/null/x"),
    ],
)
def test_values_that_do_not_fit(pair, checkpoints, capsys, words, told):
    assert told in refused(capsys, *pair, *words)
    assert not (checkpoints / "out").exists()


def test_a_draft_needs_its_target_and_a_plain_target_needs_a_draft(checkpoints, capsys):
    assert "--draft: give its target with --model" in refused(capsys, "--draft", str(checkpoints / "draft"))
    line = refused(capsys, "--model", str(checkpoints / "target"), "--num-prompts=3", "--dataset-path", str(checkpoints / "prompts.jsonl"))
    assert "--draft is required" in line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no usable conversation"),
        ("\n\n", "no usable conversation"),
        ('{"conversations": []}\n', "no usable conversation"),
        ("not json\n", "line 1: this is no JSON"),
        ('{"conversations": [{"content": "one"}, {"content": "x"}]}\n{"conversations": [{"content": " "}, {"content": "x"}]}\n', "line 2: the prompt is empty"),
        ('{"conversations": [{"content": null}, {"content": "x"}]}\n', "line 1: the prompt is empty"),
    ],
)
def test_datasets_that_cannot_be_used(pair, checkpoints, capsys, content, told):
    (checkpoints / "prompts.jsonl").write_text(content)
    assert told in refused(capsys, *pair)


def test_a_sharegpt_file_is_a_list(pair, checkpoints, capsys):
    path = checkpoints / "prompts.jsonl"
    assert "this is no JSON" in refused(capsys, *pair, "--dataset=sharegpt")
    path.write_text(json.dumps([{"conversations": [{"value": ""}, {"value": "x"}]}]))
    assert "conversation 1: the prompt is empty" in refused(capsys, *pair, "--dataset=sharegpt")


def test_a_directory_with_a_run_is_not_overwritten(pair, checkpoints, capsys, monkeypatch):
    monkeypatch.setattr(command, "execute", lambda context: 0)
    assert cli.main(["bench", *pair]) == 0
    run = json.loads((checkpoints / "out" / "run.json").read_text())
    assert run["settings"]["family"] == "eagle" and run["settings"]["environment"] == {"HF_HUB_OFFLINE": "1"}
    assert len({arm["name"] for arm in run["arms"]}) == len(run["arms"])
    named = {arm["name"] for arm in run["arms"]}
    assert {unit["suite"] for unit in run["units"]} == {"comparison", "ablation", "rules"}
    assert {unit["arm"] for unit in run["units"]} == named
    assert run["schema"] == 1 and run["seed"] == 0 and run["versions"]["sglang"]
    assert "there is a run in it" in refused(capsys, *pair)


def test_numbers_of_prompts_follow_their_concurrency(pair, checkpoints, monkeypatch):
    write_prompts(checkpoints / "prompts.jsonl", map(str, range(20)))
    seen = []
    monkeypatch.setattr(command, "execute", lambda context: seen.append(context.settings) or 0)
    assert cli.main(["bench", *pair, "--concurrency=8,1", "--num-prompts=16,4", "--thresholds=0.5", "--dataset=custom"]) == 0
    assert (seen[0].concurrency, seen[0].num_prompts, seen[0].ablation_concurrency) == ([1, 8], [4, 16], 8)
    assert seen[0].thresholds == seen[0].sampled_thresholds == [0.5]


@pytest.mark.parametrize(
    ("architecture", "more", "reason"),
    [
        ("LlamaForCausalLMEagle3", {"draft_vocab_size": 50}, "the draft has 50 of the target's 100 tokens"),
        ("LlamaForCausalLM", {}, "the draft is standalone"),
    ],
)
def test_rejection_sampling_is_measured_where_sglang_has_it(pair, checkpoints, capsys, monkeypatch, architecture, more, reason):
    config = {"architectures": [architecture], "vocab_size": 100} | more
    (checkpoints / "draft" / "config.json").write_text(json.dumps(config))
    assert f"--arms rejection: {reason}" in refused(capsys, *pair, "--arms=plain,rejection")
    seen = []
    monkeypatch.setattr(command, "execute", lambda context: seen.append(context.settings.kinds) or 0)
    assert cli.main(["bench", *pair]) == 0
    assert seen == [["plain", "stock", "nsd"]]
