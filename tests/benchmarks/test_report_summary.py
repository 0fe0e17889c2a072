"""Aggregation: ratios by hand, what they divide by, interrupted and damaged runs."""

import json
import random
from pathlib import Path

import pytest
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.run_files import read
from nsd_sglang.benchmarks.summary import find, summarise
from report_run import arm, full_run, nsd, quality_lines, unit, write_lines


def small_run(directory: Path, results: list[dict], arms: list[dict] | None = None, **run: object) -> dict:
    arms = arms or [arm("plain", "plain"), arm("stock", "stock"), arm("NSD 0.95", "nsd", 0.95)]
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_text(json.dumps({"schema": 1, "seed": 0, "arms": arms, "units": [], **run}))
    write_lines(directory / "results.jsonl", results)
    return summarise(read(directory))


def three(rates: dict[str, list[float]], suite: str = "comparison") -> list[dict]:
    return [
        unit(suite, name, 1, repeat, rate, **(nsd(0.95, 3.0) if name.startswith("NSD") else {}))
        for name, values in rates.items()
        for repeat, rate in enumerate(values)
    ]


def test_ratios_by_hand(tmp_path):
    summary = small_run(tmp_path, three({"plain": [10, 20], "stock": [20, 30], "NSD 0.95": [30, 60]}))
    group = find(summary["groups"], "comparison", "NSD 0.95", 1)
    assert group["figures"]["output_throughput"]["value"] == 45
    assert group["figures"]["output_throughput"]["per_repeat"] == {"0": 30, "1": 60}
    plain, stock = (group["ratios"][kind]["figures"]["output_throughput"] for kind in ("plain", "stock"))
    assert plain["value"] == 3.0 and (plain["low"], plain["high"]) == pytest.approx((3, 3))  # both repeats say 3
    assert stock["value"] == 45 / 25 and stock["per_repeat"] == {"0": 1.5, "1": 2.0}
    assert stock["low"] < 1.5 < 2.0 < stock["high"]
    assert group["figures"]["deviation_per_token"]["value"] == pytest.approx(0.45 * 0.95**2)
    assert group["figures"]["rescued_per_token"]["value"] == pytest.approx(451 / 1900)
    assert group["ratios"]["stock"]["figures"]["verify_calls_per_token"]["value"] == pytest.approx(1 / 3)
    assert "plain" not in find(summary["groups"], "comparison", "plain", 1)["ratios"]
    assert summary["headline"] == {"nsd": "NSD 0.95", "plain": "plain", "stock": "stock", "concurrencies": [1]}
    assert summary["highest"]["nsd_over_plain"]["value"] == 3.0


def test_every_ratio_by_a_recount_of_the_raw_lines(tmp_path):
    directory = full_run(tmp_path / "run")
    groups = summarise(read(directory))["groups"]
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]

    def rates(suite, name, concurrency):
        return [u["output_tokens"] / u["duration_s"] for u in lines if (u["suite"], u["arm"], u["concurrency"]) == (suite, name, concurrency)]

    counted = 0
    for group in groups:
        for ratio in group["ratios"].values():
            above, below = rates(group["suite"], group["arm"], group["concurrency"]), rates(ratio["suite"], ratio["arm"], group["concurrency"])
            figure = ratio["figures"]["output_throughput"]
            assert figure["value"] == pytest.approx(sum(above) / sum(below)) and figure["low"] <= figure["value"] <= figure["high"]
            counted += 1
    assert counted == 3 * (1 + 1 + 4 * 2) + 5 + 12  # comparison, rules, ablation


def test_only_repeats_that_both_have_enter_a_ratio(tmp_path):
    summary = small_run(tmp_path, three({"plain": [10], "NSD 0.95": [30, 900]}))
    ratio = find(summary["groups"], "comparison", "NSD 0.95", 1)["ratios"]["plain"]
    assert ratio["repeats"] == [0] and ratio["figures"]["output_throughput"] == {
        "value": 3.0, "low": None, "high": None, "count": 1, "per_repeat": {"0": 3.0},
    }  # fmt: skip


def test_reference_has_the_same_tree_and_the_own_suite_first(tmp_path):
    other = {"num_steps": 2, "topk": 1, "num_draft_tokens": 3}
    arms = [arm("plain", "plain"), arm("stock", "stock"), arm("stock short", "stock", **other), arm("NSD short", "nsd", 0.9, **other)]
    units = three({"plain": [10], "stock": [20], "stock short": [15], "NSD short": [30]})
    units += three({"plain": [12], "NSD short": [36]}, "ablation")
    groups = small_run(tmp_path, units, arms)["groups"]
    for suite, plain in (("comparison", "comparison"), ("ablation", "ablation")):
        ratios = find(groups, suite, "NSD short", 1)["ratios"]
        assert (ratios["plain"]["arm"], ratios["plain"]["suite"], ratios["plain"]["figures"]["output_throughput"]["value"]) == ("plain", plain, 3)
        assert (ratios["stock"]["arm"], ratios["stock"]["suite"]) == ("stock short", "comparison")
    assert find(groups, "comparison", "stock short", 1)["ratios"]["stock"]["arm"] == "stock"


def test_another_suites_repeats_are_averaged_not_paired(tmp_path):
    units = three({"plain": [10, 20], "NSD 0.95": [30, 60]}) + three({"NSD 0.95": [45, 45]}, "ablation")
    ratio = find(small_run(tmp_path, units)["groups"], "ablation", "NSD 0.95", 1)["ratios"]["plain"]
    assert ratio["suite"] == "comparison" and ratio["repeats"] == []
    figure = ratio["figures"]["output_throughput"]
    assert (figure["value"], figure["low"], figure["high"]) == (3.0, None, None)


def test_headline_is_nearest_to_the_papers_threshold_not_the_fastest(tmp_path):
    arms = [arm("plain", "plain"), arm("NSD 0.99", "nsd", 0.99), arm("NSD 0.9", "nsd", 0.94), arm("NSD rule", "nsd", 0.95, gate="top-m")]
    summary = small_run(tmp_path, three({"plain": [10], "NSD 0.99": [90], "NSD 0.9": [20], "NSD rule": [99]}), arms)
    assert summary["headline"]["nsd"] == "NSD 0.9" and summary["headline"]["stock"] is None


@pytest.mark.parametrize("shape", [list, lambda key: dict(zip(("suite", "arm", "concurrency", "repeat"), key)), lambda key: "x-%s-%s-%s-%s" % tuple(key)])
def test_unfinished_units_whatever_the_keys_look_like(tmp_path, shape):
    keys = [("comparison", name, 1, repeat) for name in ("plain", "NSD 0.95") for repeat in (0, 1)]
    units = three({"plain": [10, 11], "NSD 0.95": [30]})
    for line in units:
        line["raw"] = f"raw/x-{line['suite']}-{line['arm']}-{line['concurrency']}-{line['repeat']}.jsonl"
    summary = small_run(tmp_path, units, units=[shape(key) for key in keys])
    missing = ["comparison", "NSD 0.95", 1, 1]
    assert summary["unfinished"] in ([missing], ["x-comparison-NSD 0.95-1-1"])
    assert (summary["planned_units"], summary["finished_units"]) == (4, 3)


def test_damaged_lines_are_counted_and_odd_values_are_not_measured(tmp_path):
    small_run(tmp_path, three({"plain": [10]}))
    odd = unit("comparison", "plain", 1, 1, 20.0, itl_ms="soon", accept_length=2.0)
    odd |= {"tpot_ms": {"mean": float("nan")}, "request_throughput": True, "target_ms_per_call": 10**400}
    failed = {"suite": "comparison", "arm": "stock", "concurrency": 1, "repeat": 0, "error": "the server died"}
    with (tmp_path / "results.jsonl").open("a") as results:
        results.write(json.dumps(odd) + "\n" + json.dumps(failed) + '\n[1]\n{"suite": "x"}\n{"suite": "compar')
    (tmp_path / "diagnostics.json").write_text('{"arms": 3}')
    summary = summarise(read(tmp_path))
    figures = find(summary["groups"], "comparison", "plain", 1)["figures"]
    assert figures["output_throughput"]["value"] == 15
    for key in ("itl_ms.p50", "tpot_ms.mean", "request_throughput", "target_ms_per_call"):
        assert figures[key]["count"] == 1 and figures[key]["per_repeat"]["1"] is None
    assert [entry["error"] for entry in summary["failed"]] == ["the server died"]
    assert len(summary["problems"]) == 3 and any("2 line(s)" in problem for problem in summary["problems"])
    json.dumps(summary, allow_nan=False)


def test_a_failure_that_a_later_try_made_good_is_no_failure(tmp_path):
    failed = {"suite": "comparison", "arm": "plain", "concurrency": 1, "repeat": 0, "error": "the server died"}
    summary = small_run(tmp_path, [failed, *three({"plain": [10]}), *three({"plain": [12]})])
    assert summary["failed"] == [] and find(summary["groups"], "comparison", "plain", 1)["figures"]["output_throughput"]["value"] == 12


def test_failures_of_arms_that_never_finished_are_named(tmp_path):
    small_run(tmp_path, three({"plain": [10]}), units=[("comparison", "plain", 1, 0), ("comparison", "stock", 1, 0)])
    failures = ["comparison: stock: the server died", {"suite": "comparison", "arm": "plain", "error": "not any more"}, 3]
    (tmp_path / "failures.json").write_text(json.dumps(failures))
    assert summarise(read(tmp_path))["failed"] == [
        {"suite": None, "arm": None, "concurrency": None, "repeat": None, "error": "comparison: stock: the server died"}
    ]


def test_not_a_run_directory(tmp_path):
    for content, expected in ((None, "does not exist"), ("{", "cannot be read"), ("[]", "JSON object")):
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        with pytest.raises(BenchError, match=expected):
            read(tmp_path)
    with pytest.raises(BenchError, match="not a directory"):
        read(tmp_path / "nowhere")


def test_quality_by_hand(tmp_path):
    answer = {"suite": "quality", "sample": 0, "tokens": 2, "finish": "stop", "distinct_2": 0.5}
    lines = [
        answer | {"arm": "plain", "prompt": 0, "logprob": -2.0, "entropy": 2.0},
        answer | {"arm": "plain", "prompt": 1, "logprob": -6.0, "entropy": 4.0, "finish": "length", "distinct_2": 1.0},
        answer | {"arm": "NSD 0.95", "prompt": 0, "logprob": -1.0, "entropy": 1.0, "tv_bound": 0.5, "rescued": 1},
        answer | {"arm": "NSD 0.95", "prompt": 1, "logprob": -5.0, "entropy": 4.0, "tv_bound": 0.5, "rescued": 0},
        answer | {"arm": "NSD 0.95", "prompt": 2, "logprob": -90.0, "entropy": 9.0, "tokens": 8, "outside": 2},
    ]
    small_run(tmp_path, [])
    write_lines(tmp_path / "quality.jsonl", lines)
    plain, ours = summarise(read(tmp_path))["quality"]
    assert plain["figures"]["logprob_per_token"]["value"] == -2.0 and plain["figures"]["stopped"]["value"] == 0.5
    assert plain["figures"]["distinct_2"]["value"] == 0.75 and plain["figures"]["distinct_2"]["high"] == 1.0
    assert ours["figures"]["logprob_per_token"]["value"] == -9.6 and ours["figures"]["tokens_per_answer"]["value"] == 4
    assert ours["figures"]["deviation_per_token"]["value"] == 0.25 and ours["figures"]["rescued_per_token"]["value"] == 0.25
    difference = ours["differences"]["plain"]["figures"]["logprob_per_token"]  # prompts 0 and 1 only
    assert (difference["value"], difference["count"]) == (0.5, 2)


def test_pass_rates_stay_shares_and_none_passed_is_not_certainty(tmp_path):
    small_run(tmp_path, [])
    lines = [line for line in quality_lines(random.Random(1)) if line["suite"] == "humaneval"]
    for line in lines:
        line["passed"] = line["arm"] == "plain" and line["prompt"] == 0
    write_lines(tmp_path / "quality.jsonl", lines)
    for group in summarise(read(tmp_path))["quality"]:
        passed = group["figures"]["passed"]
        assert 0 <= passed["low"] <= passed["value"] <= passed["high"] <= 1
        if passed["value"] == 0:
            assert passed["high"] == pytest.approx(1 - 0.025 ** (1 / 24))
