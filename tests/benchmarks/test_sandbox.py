"""The sandbox passes what is right, and nothing that a program does on the way hurts this machine or passes by accident."""

import os
import platform
import sys

import pytest

from nsd_sglang.benchmarks import sandbox, sandbox_child
from nsd_sglang.benchmarks.sandbox import Limits, run_test

TEST = "def check(f):\n    assert f(2) == 4\n"
RIGHT = "def f(x):\n    return 2 * x\n"
# One second of CPU time can take many on a busy machine.
SHORT = Limits(cpu_s=1, wall_s=30)
FILTERED = sys.platform == "linux" and platform.machine() in sandbox.FILTERED_MACHINES
filtered = pytest.mark.skipif(not FILTERED, reason="no system-call filter for this machine")


def fails(program: str, reason: str, limits: Limits = SHORT) -> float:
    outcome = run_test(program, TEST, "f", limits)
    assert not outcome.passed
    assert reason in outcome.reason
    return outcome.seconds


def test_right_and_wrong_programs():
    outcome = run_test(RIGHT, TEST, "f")
    assert outcome.passed and outcome.reason == ""
    fails("def f(x):\n    return x\n", "AssertionError")
    fails("def f(x) return x\n", "SyntaxError")
    fails("def g(x):\n    return 2 * x\n", "KeyError")
    fails("raise ValueError('no\\nnewlines')\n", "ValueError: no")


@pytest.mark.parametrize("leave", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit", "quit()"])
def test_leaving_early_does_not_pass(leave):
    fails(leave + "\n", "")
    fails(f"def f(x):\n    {leave}\n", "")


def test_what_is_printed_or_sent_does_not_pass():
    fails("print('{\"token\": \"\"}')\nimport os; os._exit(0)\n", "ended before its test did (exit code 0)")
    everywhere = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"token\": \"x\"}')\n    except OSError: pass\nos._exit(0)\n"
    fails(everywhere, "")


def test_endless_programs_end():
    fails("while True: pass\n", "took more than 1 s of CPU time")
    waiting = Limits(cpu_s=1, wall_s=0.7)
    assert fails("import time; time.sleep(60)\n", "took longer than 0.7 s", waiting) < 20
    # Not even a program that refuses to be terminated.
    stubborn = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)\n"
    assert fails(stubborn, "took longer", waiting) < 20


def test_memory_is_limited():
    fails("def f(x):\n    return bytearray(2 << 30)\n", "MemoryError")
    hog = "kept = []\nwhile True: kept.append(bytearray(1 << 20))\n"
    fails(hog, "MemoryError", Limits(wall_s=60, memory_bytes=128 << 20))


@filtered
@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()\n",
        "import subprocess; subprocess.run(['true'])\n",
        "import os; os.posix_spawn('/bin/true', ['true'], {})\n",
        "import threading; threading.Thread(target=print).start()\n",
        "import socket; socket.socket()\n",
        "import os; os.kill(os.getppid(), 9)\n",
        "import os; os.mkdir('here')\n",
        "import os; os.memfd_create('x')\n",
        "import shutil; shutil.rmtree('.')\n",
    ],
)
def test_processes_sockets_and_signals_are_refused(program):
    fails(program, "t start new thread" if "threading" in program else "not permitted")


@filtered
def test_files_cannot_be_changed(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    os.utime(kept, (1, 1))
    for change in ("open(p, 'w')", "open(p, 'a')", "open(p, 'r+')", "os.truncate(p, 0)", "os.remove(p)", "os.chmod(p, 0)"):
        fails(f"import os\np = {str(kept)!r}\n{change}\n", "not permitted")
    for change in ("os.rename(p, p + '2')", "os.symlink(p, p + '2')", "os.link(p, p + '2')", "os.utime(p)", "os.open(p + '2', os.O_CREAT)"):
        fails(f"import os\np = {str(kept)!r}\n{change}\n", "not permitted")
    assert kept.read_text() == "as it was" and kept.stat().st_mtime == 1
    assert list(tmp_path.iterdir()) == [kept]


def test_without_the_filter_a_file_still_cannot_grow(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "_filtered", lambda: False)
    for path in (str(tmp_path / "x"), "here"):
        fails(f"with open({path!r}, 'w') as out: out.write('x' * 100)\n", "File too large")
    assert run_test(RIGHT, TEST, "f").passed


def test_the_limits_cannot_be_raised():
    raise_it = "import resource as r\nr.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY, r.RLIM_INFINITY))\n"
    fails(raise_it, "Error")


def test_no_environment_no_input_no_packages_and_an_empty_directory(monkeypatch):
    monkeypatch.setenv("NSD_SECRET", "1")
    facts = "import os, sys\nassert 'NSD_SECRET' not in os.environ and not sys.stdin.read() and os.listdir('.') == []\n"
    assert run_test(facts + RIGHT, TEST, "f").passed
    fails("import numpy\n", "No module named 'numpy'")


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    fails("import time; time.sleep(61.25)\n", "took longer", Limits(wall_s=0.5))
    fails("for _ in range(100): print('x' * 10**6)\n", "KeyError")
    assert list(tmp_path.iterdir()) == []
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_without_namespaces_it_works_the_same(monkeypatch):
    monkeypatch.setattr(sandbox, "_namespaces", lambda: ())
    assert run_test(RIGHT, TEST, "f").passed
    assert fails("import time; time.sleep(60)\n", "took longer", Limits(wall_s=0.5)) < 20
    fails("while True: pass\n", "CPU time")


def test_what_is_in_force_is_said(monkeypatch):
    sandbox.isolation.cache_clear()
    monkeypatch.setattr(sandbox, "_namespaces", lambda: ())
    monkeypatch.setattr(sandbox, "_filtered", lambda: False)
    assert "network NOT cut off" in sandbox.isolation()
    sandbox.isolation.cache_clear()
    monkeypatch.setattr(sandbox, "_filtered", lambda: True)
    assert "NOT" not in sandbox.isolation()
    sandbox.isolation.cache_clear()


@pytest.mark.parametrize("machine", sandbox_child.MACHINES)
def test_every_jump_of_the_filter_stays_inside(machine):
    lines = sandbox_child.filter_instructions(machine)
    for position, (code, if_true, if_false, _) in enumerate(lines):
        assert position + 1 + max(if_true, if_false) < len(lines) or code == sandbox_child.RETURN
    column = sandbox_child.MACHINES[machine][1]
    numbers = [n[column] for n in (sandbox_child.REFUSED | sandbox_child.ABSENT).values() if n[column] is not None]
    assert len(set(numbers)) == len(numbers)
