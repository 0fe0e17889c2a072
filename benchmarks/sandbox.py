"""Run one generated program and its test in a process of its own that can hurt nothing.

What holds a program (``sandbox_child.py`` sets the limits before the first line of it runs):

- an isolated interpreter (``python -I -S``: the standard library alone), no environment, an empty directory that is removed
  afterwards, standard input closed, output thrown away;
- limits on CPU time, address space, file size, processes and core files, and a wall-clock limit after which the whole process
  group is killed;
- Linux on x86-64 or ARM64: a system-call filter without which nothing runs there. It refuses starting processes and threads,
  sockets, signals, opening a file for writing and every other change of the file system, and raising the limits;
- where unprivileged namespaces are allowed (``unshare``): no network interface and a process table of its own, so that all of it
  dies together.

:func:`isolation` says which of these are in force here. Reading files is not prevented; nothing read can leave.

A program passes only when its test has returned: the child then sends a random token back through a pipe, so neither
``sys.exit(0)`` nor ``os._exit(0)`` nor printing passes. The token lies in the same process as the program, hence a program
written to look for it there could; models that have never seen this file do not.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
NAMESPACES = ("--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
FILTERED_MACHINES = ("x86_64", "aarch64")
MAX_REPLY_BYTES = 65536


@dataclass(frozen=True)
class Limits:
    """What one program may use. wall_s is longer than cpu_s: the machine may be busy with something else."""

    cpu_s: int = 5
    wall_s: float = 20.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True)
class Outcome:
    """passed: the test returned. reason: one line, "" when passed. seconds: wall clock."""

    passed: bool
    reason: str
    seconds: float


def run_test(program: str, test: str, entry_point: str, limits: Limits = Limits()) -> Outcome:
    """Execute ``program``, then ``test``, then ``check(<entry_point>)``, which ``test`` defines, in one namespace."""
    token = secrets.token_hex(16)
    job = {"token": token, "program": program, "test": test, "entry_point": entry_point, "filter": _filtered(), **asdict(limits)}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nsd-sglang-sandbox-") as empty:
        reply, code = _run(json.dumps(job).encode(), empty, limits.wall_s)
    seconds = time.monotonic() - begin
    try:
        said = json.loads(reply)
        if said.get("token") == token:
            return Outcome(True, "", seconds)
        reason = str(said["error"])
    except (ValueError, KeyError, AttributeError, TypeError):
        reason = _ending(code, seconds, limits)
    return Outcome(False, reason, seconds)


@functools.cache
def isolation() -> str:
    """One line for a report: what keeps a program from network, files and processes on this machine."""
    filtered = "system-call filter (no sockets, processes or file changes)" if _filtered() else None
    namespaced = "own network and process namespaces" if _namespaces() else None
    parts = [part for part in (filtered, namespaced) if part]
    return "; ".join(["separate process with limits on time, memory and file size", *(parts or ["network NOT cut off"])])


def _run(job: bytes, cwd: str, wall_s: float) -> tuple[bytes, int | None]:
    """What the child sent back, and its exit code; None when it was killed at the wall-clock limit."""
    receiving, sending = os.pipe()
    os.set_blocking(receiving, False)
    command = [*_namespaces(), sys.executable, "-I", "-S", "-B", "-X", "utf8", str(CHILD), str(sending)]
    # An interpreter that is linked to a shared library in an unusual place does not start without it.
    env = {key: value for key, value in os.environ.items() if key == "LD_LIBRARY_PATH"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(sending,),
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            process.communicate(job, timeout=wall_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_group(process)
        try:
            return os.read(receiving, MAX_REPLY_BYTES), code
        except BlockingIOError:
            return b"", code
    finally:
        os.close(receiving)
        os.close(sending)


def _kill_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _ending(code: int | None, seconds: float, limits: Limits) -> str:
    if code is None:
        return f"took longer than {limits.wall_s:g} s"
    # A kill at the CPU limit looks like any other kill, and unshare hides even that.
    if code != 0 and seconds >= limits.cpu_s:
        return f"took more than {limits.cpu_s} s of CPU time"
    return f"ended before its test did (exit code {code})"


def _filtered() -> bool:
    return sys.platform == "linux" and platform.machine() in FILTERED_MACHINES


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """The command's beginning that gives it namespaces of its own; empty where that is not allowed."""
    unshare = shutil.which("unshare")
    if not unshare:
        return ()
    command = (unshare, *NAMESPACES)
    tried = subprocess.run([*command, "/bin/true"], stdin=subprocess.DEVNULL, capture_output=True)
    return command if tried.returncode == 0 else ()
