"""The server manager: no process survives the end of its ``with`` block or of the process that holds it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from nsd_sglang.demo.cache import DemoError
from nsd_sglang.demo.server import Server, last_lines, _last_message

FAKE = Path(__file__).with_name("fake_server.py")
HOLDER = """
import sys, time
from nsd_sglang.console import signals_as_exit
from nsd_sglang.demo.server import Server, last_lines, _last_message
program, log = sys.argv[1:-1], sys.argv[-1]
with signals_as_exit(), Server("fake", [], log, program=program):
    print("ready", flush=True)
    time.sleep(600)
"""


def fake(tmp_path, mode):
    return [sys.executable, str(FAKE), str(tmp_path / "pids"), mode]


def started_pids(tmp_path):
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    return pids


def wait_gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def wait_removed(tmp_path, seconds=5.0):
    """Whether the fake server's temporary file goes away; the guard removes it after the processes."""
    left = Path((tmp_path / "pids.temporary").read_text())
    deadline = time.monotonic() + seconds
    while left.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left.exists()


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_answers_inside_the_block_and_is_gone_after_it(tmp_path):
    with Server("fake", [], tmp_path / "log", program=fake(tmp_path, "ok")) as server:
        assert requests.get(f"{server.url}/health", timeout=5).status_code == 200
        assert server.url.startswith("http://127.0.0.1:")
        pids = started_pids(tmp_path)
        assert all(alive(pid) for pid in pids)
    assert [pid for pid in pids if alive(pid)] == []


def test_is_gone_when_the_block_raises(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with Server("fake", [], tmp_path / "log", program=fake(tmp_path, "ok")):
            raise ZeroDivisionError
    assert [pid for pid in started_pids(tmp_path) if alive(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
def test_is_gone_when_its_holder_is_killed(tmp_path, number):
    command = [sys.executable, "-c", HOLDER, *fake(tmp_path, "ok"), str(tmp_path / "log")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert any(line == "ready\n" for line in holder.stdout)
        pids = started_pids(tmp_path)
        assert all(alive(pid) for pid in pids)
        holder.send_signal(number)
        code = holder.wait(30)
        # A plain death by these two would skip every clean-up but the guard's.
        assert code == 128 + number if number in (signal.SIGTERM, signal.SIGHUP) else code != 0
        assert wait_gone(pids) == []
        assert wait_removed(tmp_path)
    finally:
        holder.kill()
        holder.wait()


def test_a_death_at_start_up_is_told_with_code_and_log(tmp_path):
    with pytest.raises(DemoError, match="fake server ended with exit code 3") as told:
        with Server("fake", [], tmp_path / "log", program=fake(tmp_path, "dies")):
            pass
    assert "--frobnicate" in str(told.value)
    assert str(tmp_path / "log") in str(told.value)
    assert wait_gone(started_pids(tmp_path)) == []


def test_a_server_that_never_answers_is_given_up(tmp_path):
    with pytest.raises(DemoError, match="not ready after"):
        with Server("fake", [], tmp_path / "log", timeout_s=3.0, program=fake(tmp_path, "silent")):
            pass
    assert [pid for pid in started_pids(tmp_path) if alive(pid)] == []


def test_progress_shows_the_log_while_waiting(tmp_path, capfd):
    with Server("fake", [], tmp_path / "log", program=fake(tmp_path, "ok")):
        pass
    out = capfd.readouterr().out
    assert "Starting the fake server: 0 s" in out
    assert "The fake server is ready after" in out


def test_the_newest_message_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert _last_message(log) == ""
    log.write_text("Traceback:\n\n  0%|\r100%| loaded\n")
    assert _last_message(log) == "100%| loaded"
    log.write_text("[2026-11-29 16:09:13 TP0] Load weight begin.\n[2026-11-29 16:09:18] KV Cache\n  warnings.warn(\n")
    assert _last_message(log) == "KV Cache"
    assert last_lines(log, 2) == ["[2026-11-29 16:09:18] KV Cache", "  warnings.warn("]
