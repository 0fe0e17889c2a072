"""The figures of recorded runs (the demo's pair, three prompts one at a time), and their independent recount."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsd_sglang.benchmarks import collect, metrics, recount
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.errors import BenchError

RECORDED = Path(__file__).with_name("recorded")
LINES = [json.loads(line) for line in (RECORDED / "results.jsonl").read_text().splitlines()]
ARMS = {arm["name"]: Arm.from_json(arm) for arm in json.loads((RECORDED / "run.json").read_text())["arms"]}


def files(line):
    counters = json.loads((RECORDED / line["counters"]).read_text())
    return collect.read_raw(RECORDED / line["raw"]), metrics.difference(counters["before"], counters["after"])


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["arm"])
def test_a_recorded_unit_gives_its_line(line):
    raw, counted = files(line)
    figures = collect.figures(ARMS[line["arm"]], raw, counted, line["num_requests"])
    assert figures == {name: line[name] for name in figures}


def test_words_mean_what_they_say():
    plain, stock, nsd = (next(line for line in LINES if ARMS[line["arm"]].kind == kind) for kind in ("plain", "stock", "nsd"))
    assert plain["decoded_tokens"] == plain["output_tokens"] - plain["completed"] == plain["verify_calls"]
    assert plain["accept_length"] == plain["verify_calls_per_token"] == 1
    for line in (stock, nsd):
        # One request at a time: every verify call is one of the target's, plus those started before an answer's end was known.
        assert 0 <= line["target_calls"] - line["verify_calls"] <= line["completed"]
        assert line["accept_length"] == pytest.approx(line["decoded_tokens"] / line["verify_calls"])
        assert line["accept_length"] * line["verify_calls_per_token"] == pytest.approx(1)
    for line in (plain, stock, nsd):
        assert 0 < line["target_ms_per_call"] * line["target_calls"] < line["duration_s"] * 1000


def test_nsds_counters_are_of_the_unit_alone():
    line = next(line for line in LINES if ARMS[line["arm"]].kind == "nsd")
    raw, counted = files(line)
    counted |= {"sglang:spec_nsd_rescued_tokens_total": 7.0, "sglang:spec_nsd_tv_bound_sum": 4.65}
    figures = collect.figures(ARMS[line["arm"]], raw, counted, 3)
    assert (figures["rescued"], figures["tv_bound"]) == (7, 4.65)
    assert figures["deviation_per_token"] == 4.65 / figures["decoded_tokens"]
    assert collect.figures(ARMS["plain"], raw, counted, 3)["rescued"] is None


def test_failed_and_missing_requests_are_errors():
    raw, counted = files(LINES[0])
    with pytest.raises(BenchError, match="1 of 3 requests failed.*connection lost"):
        collect.figures(ARMS["plain"], raw | {"errors": ["", "connection lost", ""]}, counted, 3)
    with pytest.raises(BenchError, match="completed 3 of 4"):
        collect.figures(ARMS["plain"], raw, counted, 4)


def test_no_output_is_an_error(tmp_path):
    for text in (None, "", "{"):
        path = tmp_path / "raw.jsonl"
        if text is not None:
            path.write_text(text)
        with pytest.raises(BenchError, match="wrote no result to .*raw.jsonl"):
            collect.read_raw(path)


def test_counters_are_read_by_kind_and_of_the_first_rank():
    text = """# TYPE sglang:forward_execution_seconds_total counter
sglang:forward_execution_seconds_total{category="decode",tp_rank="0",model_name="m"} 1.5
sglang:forward_execution_seconds_total{category="decode",tp_rank="1",model_name="m"} 1.25
sglang:forward_execution_seconds_total{category="target_verify",tp_rank="0",model_name="m"} 2.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m",priority="a"} 3.0
sglang:spec_verify_calls_total{model_name="m",priority="b"} 4.0
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{tp_rank="0"} 9.0
"""
    assert metrics.parse(text) == {
        "sglang:forward_execution_seconds_total{decode}": 1.5,
        "sglang:forward_execution_seconds_total{target_verify}": 2.0,
        "sglang:spec_verify_calls_total": 7.0,
    }


def test_what_is_counted_begins_after_the_warm_up():
    assert metrics.difference({"a": 2.0}, {"a": 5.0, "b": 1.0}) == {"a": 3.0, "b": 1.0}


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_the_recount_agrees(copy, capsys):
    assert recount.main([str(copy)]) == 0
    assert "3 units" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"), [("output_throughput", 16.0), ("verify_calls", 5), ("ttft_ms", {"mean": 1.0, "p50": 1.0, "p99": 1.0})]
)
def test_the_recount_finds_a_changed_figure(copy, capsys, name, value):
    lines = [json.loads(line) for line in (copy / "results.jsonl").read_text().splitlines()]
    lines[2][name] = value
    (copy / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recount.main([str(copy)]) == 1
    assert f"'{lines[2]['arm']}', 1, 0) {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line.update(warm_up_requests=3), "another warm-up"),
        (lambda line: line["command"].append("--top-p"), "another command"),
    ],
)
def test_the_recount_finds_unequal_treatment(copy, capsys, change, told):
    lines = [json.loads(line) for line in (copy / "results.jsonl").read_text().splitlines()]
    change(lines[1])
    (copy / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recount.main([str(copy)]) == 1
    assert told in capsys.readouterr().out


def test_the_recount_holds_for_the_summary_too(copy, capsys):
    """Two more repeats, made up by scaling, so that there are intervals."""
    report = pytest.importorskip("nsd_sglang.benchmarks.report")
    for factor, repeat in ((1.1, 1), (0.8, 2)):
        for line in LINES:
            raw = json.loads((copy / line["raw"]).read_text())
            name = f"{Path(line['raw']).stem}-{repeat}"
            raw["duration"] *= factor * (1 + line["verify_calls"] / 1000)
            raw["output_throughput"], raw["request_throughput"] = (raw[n] / raw["duration"] for n in ("total_output_tokens", "completed"))
            (copy / "raw" / f"{name}.jsonl").write_text(json.dumps(raw))
            counted = files(line)[1]
            figures = collect.figures(ARMS[line["arm"]], raw, counted, 3)
            with open(copy / "results.jsonl", "a") as out:
                out.write(json.dumps(line | figures | {"repeat": repeat, "raw": f"raw/{name}.jsonl"}) + "\n")
    report.build(copy)
    assert recount.main([str(copy)]) == 0, capsys.readouterr().out
    summary = json.loads((copy / "summary.json").read_text())
    ratio = next(g for g in summary["groups"] if g["kind"] == "nsd")["ratios"]["stock"]["figures"]["output_throughput"]
    for name in ("value", "low", "high"):
        before = ratio[name]
        ratio[name] *= 1.01
        (copy / "summary.json").write_text(json.dumps(summary))
        assert recount.main([str(copy)]) == 1
        ratio[name] = before


def test_the_recount_imports_nothing_of_the_benchmark():
    script = Path(recount.__file__)
    code = "import sys; sys.argv = ['x']; import runpy; runpy.run_path(%r); print([m for m in sys.modules if m.startswith(('nsd', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code % str(script)], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
