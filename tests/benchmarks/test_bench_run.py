"""Whole runs against stand-ins for the server and for bench_serving: failures, kills and resumption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "raw" / "comparison-plain-c1-r0.jsonl"
RUN = """
import sys
from nsd_sglang.benchmarks import command, units
from nsd_sglang import cli
program, load_program = sys.argv[1].split(), sys.argv[2].split()
prepare = command.prepare
def prepared(args):
    context = prepare(args)
    context.program, context.load_program = program, load_program
    return context
command.prepare = prepared
command._report = lambda context: None
sys.exit(cli.main(["bench", *sys.argv[3:]]))
"""
PLAN = [
    ("comparison", arm, at, repeat)
    for repeat, arms in ((0, ("plain", "stock EAGLE")), (1, ("stock EAGLE", "plain")))
    for arm in arms
    for at in (1, 2)
]


class Bench:
    """`nsd-sglang bench` on stand-ins in a folder."""

    def __init__(self, folder):
        self.folder, self.out, self.notes = folder, folder / "out", folder / "notes"

    def command(self, *options):
        server = f"{sys.executable} {HERE / 'fake_server.py'} {self.notes}"
        client = f"{sys.executable} {HERE / 'fake_client.py'} {self.notes} {RECORDED}"
        return [sys.executable, "-c", RUN, server, client, *options]

    def fresh(self):
        words = ["--model", self.folder / "target", "--draft", self.folder / "draft", "--arms", "plain,stock"]
        words += ["--concurrency", "1,2", "--num-prompts", "2,3", "--repeats", "2", "--suites", "comparison"]
        return [*map(str, words), "--dataset-path", str(self.folder / "prompts.jsonl"), "--output", str(self.out)]

    def run(self, *options, **environment):
        done = subprocess.run(self.command(*options), capture_output=True, text=True, env=os.environ | environment, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def results(self):
        return [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]

    def keys(self):
        return [tuple(line[name] for name in ("suite", "arm", "concurrency", "repeat")) for line in self.results()]

    def noted(self, what):
        return [note for note in map(json.loads, self.notes.read_text().splitlines()) if what in note]

    def pids(self):
        return [pid for note in map(json.loads, self.notes.read_text().splitlines()) for pid in note["pids"]]


@pytest.fixture
def bench(checkpoints):
    return Bench(checkpoints)


def left(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while (still := [pid for pid in set(pids) if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return still


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_run_measures_its_plan_once_with_one_server_an_arm_and_repeat(bench):
    code, out, err = bench.run(*bench.fresh())
    assert code == 0, out + err
    assert bench.keys() == PLAN
    planned = json.loads((bench.out / "run.json").read_text())["units"]
    assert [tuple(unit.values()) for unit in planned] == PLAN
    assert len(bench.noted("arguments")) == 4
    assert {line["warm_up_requests"] for line in bench.results()} == {2}
    assert "[1/8]" in out and "[8/8]" in out and "left  comparison: plain, 2 at a time, repeat 2 of 2" in out
    assert json.loads((bench.out / "failures.json").read_text()) == []
    assert left(bench.pids()) == []

    # Taking it up again needs its settings, and finds nothing to do.
    code, _, err = bench.run("--resume", str(bench.out), "--repeats", "3")
    assert code == 2 and "--repeats 3: the run in" in err and "was started with --repeats 2" in err and len(err.splitlines()) == 1
    code, _, err = bench.run("--resume", str(bench.out), "--temperature", "0.5")
    assert code == 2 and "was started with no --temperature" in err
    code, out, err = bench.run("--resume", str(bench.out), "--repeats", "2", "--arms", "plain,stock")
    assert code == 0, err
    assert len(bench.noted("run")) == len(PLAN)
    code, _, err = bench.run(*bench.fresh())
    assert code == 2 and f"go on with --resume {bench.out}" in err
    code, _, err = bench.run("--resume", str(bench.folder))
    assert code == 2 and "no usable run.json" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_nothing_survives_a_kill_and_resuming_repeats_nothing(bench, number):
    running = subprocess.Popen(
        bench.command(*bench.fresh()), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {"FAKE_STALLS": "3"}
    )
    try:
        deadline = time.monotonic() + 60
        while not (bench.notes.exists() and len(bench.noted("run")) == 3):
            assert running.poll() is None and time.monotonic() < deadline, running.stderr.read()
            time.sleep(0.1)
        running.send_signal(number)
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert left(bench.pids()) == []
    assert bench.keys() == PLAN[:2]
    if number != signal.SIGKILL:
        assert running.returncode == 128 + number
        (told,) = [line for line in err.splitlines() if line]
        assert f"2 finished units are kept, go on with: nsd-sglang bench --resume {bench.out}" in told

    if number != signal.SIGKILL:  # once is enough: what is on the disk is the same
        return
    with open(bench.out / "results.jsonl", "a") as half:
        half.write('{"suite": "comp')
    before = len(bench.noted("run"))
    code, out, err = bench.run("--resume", str(bench.out))
    assert code == 0, out + err
    assert bench.keys() == PLAN
    assert len(bench.noted("run")) == before + len(PLAN) - 2
    assert left(bench.pids()) == []


@pytest.mark.parametrize(("when", "told"), [("start", "exit code 3"), ("load", "exit code 9")])
def test_a_server_that_dies_fails_its_arm_alone(bench, when, told):
    code, out, err = bench.run(*bench.fresh(), FAKE_DIES=f"{when}:EAGLE")
    assert code == 1
    assert bench.keys() == [key for key in PLAN if key[1] != "stock EAGLE"]
    assert len([note for note in bench.noted("arguments") if "EAGLE" in note["arguments"]]) == 1
    (failure,) = json.loads((bench.out / "failures.json").read_text())
    assert (failure["suite"], failure["arm"]) == ("comparison", "stock EAGLE")
    for text in (failure["error"], out, err):
        assert f"the stock EAGLE server ended with {told}" in text
        assert ("--frobnicate" if when == "start" else "out of memory, says the kernel") in text
    assert f"--resume {bench.out}" in err

    if when == "load":
        return
    code, out, err = bench.run("--resume", str(bench.out))
    assert code == 0, out + err
    assert set(bench.keys()) == set(PLAN) and len(bench.keys()) == len(PLAN)
