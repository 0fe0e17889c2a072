"""Scores of lm-eval and sgl-eval by problem, and the paired difference."""

import json

import pytest

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.pair_tasks import main, paired, scores


def lm_eval(folder, run, values, **more):
    lines = [{"doc_id": i, "filter": "f", "metrics": ["exact_match"], "exact_match": value, **more} for i, value in enumerate(values)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"samples_task_{run}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_repeats_of_a_problem_are_averaged(tmp_path):
    lm_eval(tmp_path / "a" / "model", 1, [1.0, 0.0, 1.0])
    lm_eval(tmp_path / "a" / "model", 2, [0.0, 0.0, 1.0])
    assert scores(tmp_path / "a") == {"f/0": 0.5, "f/1": 0.0, "f/2": 1.0}
    for repeat, right in enumerate([True, False, False]):
        path = tmp_path / "b" / f"output-rs{repeat}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"id": "sum-1", "symbolic_correct": right}) + "\n")
    assert scores(tmp_path / "b") == {"sum-1": pytest.approx(1 / 3)}


def test_pairing_removes_what_the_problems_share():
    hard = {str(i): 0.0 for i in range(50)}
    easy = {str(i): 1.0 for i in range(50, 100)}
    first, second = hard | easy, {key: value - 0.1 for key, value in (hard | easy).items()}
    a, b, difference = paired(first | {"only here": 9.0}, second)
    assert (a.value, b.value, a.count) == (0.5, pytest.approx(0.4), 100)
    assert a.high - a.low > 0.15
    assert difference.value == pytest.approx(0.1) and difference.high - difference.low < 1e-9


def test_what_cannot_be_paired_is_said(tmp_path, capsys):
    several = lm_eval(tmp_path / "several", 1, [1.0], metrics=["exact_match", "f1"])
    with pytest.raises(BenchError, match="--metric"):
        scores(several)
    assert scores(several, "exact_match") == {"f/0": 1.0}
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchError, match="--log_samples"):
        scores(tmp_path / "empty")
    with pytest.raises(BenchError, match="no problem in common"):
        paired({"a": 1.0}, {"b": 1.0})
    assert main([str(tmp_path / "empty"), str(several)]) == 2
    assert "pair_tasks:" in capsys.readouterr().err


def test_the_command_prints_both_arms_and_the_difference(tmp_path, capsys):
    a = lm_eval(tmp_path / "a", 1, [1.0, 1.0, 0.0, 1.0])
    b = lm_eval(tmp_path / "b", 1, [0.0, 1.0, 0.0, 0.0])
    assert main([str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["0.7500", "0.2500", "0.5000"] and "4 problems" in lines[3]
