"""Results survive a kill, and what has been measured is known."""

import io

import pytest

from nsd_sglang.benchmarks import store
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.progress import Progress


def test_a_half_written_last_line_is_left_out_and_then_replaced(tmp_path):
    path = tmp_path / "results.jsonl"
    store.append_line(path, {"a": 1})
    with open(path, "a") as file:
        file.write('{"a": 2, "b"')
    assert store.read_lines(path) == [{"a": 1}]
    store.append_line(path, {"a": 3})
    assert store.read_lines(path) == [{"a": 1}, {"a": 3}]
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_broken_line_elsewhere_is_an_error(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1\n{"a": 2}\n')
    with pytest.raises(BenchError, match="results.jsonl, line 1"):
        store.read_lines(path)


def test_no_file_is_no_results(tmp_path):
    assert store.read_lines(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("words", "name"),
    [(("comparison", "NSD 0.95 top-k"), "comparison-nsd-0.95-top-k"), (("../x", "a,b/3"), "x-a-b-3")],
)
def test_names_of_files(words, name):
    assert store.slug(*words) == name


def test_progress_estimates_from_steps_of_the_same_kind():
    now = [0.0]
    out = io.StringIO()
    progress = Progress(clock=lambda: now[0], out=out)
    progress.plan("slow", 2)
    progress.plan("fast", 3)
    progress.step("slow", "first")
    now[0] = 100.0
    progress.done("slow", "figures")
    assert progress.remaining_s() == 100 + 3 * 100
    progress.step("fast", "second")
    now[0] = 110.0
    progress.done("fast")
    assert progress.remaining_s() == 100 + 2 * 10
    progress.drop("slow")
    progress.step("fast", "third")
    lines = out.getvalue().splitlines()
    assert lines[0] == "[1/5] 0:00  first"
    assert lines[1] == "    figures"
    assert lines[2] == "[2/5] 1:40, about 6:40 left  second"
    assert lines[3] == "[3/4] 1:50, about 0:20 left  third"
