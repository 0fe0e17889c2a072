"""A real SGLang server for the length of a ``with`` block, on loopback, with its log in a file."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests

from nsd_sglang.demo import guard
from nsd_sglang.demo.cache import DemoError

HOST = "127.0.0.1"
LOG_TAIL_LINES = 15
POLL_S = 0.5
# How often a progress line is written where there is no terminal to redraw one on.
QUIET_PROGRESS_S = 10.0
# A server that does not answer its health check within this time counts as not ready yet.
HEALTH_TIMEOUT_S = 5.0
STOP_S = 20.0
# A server whose connections break is given this long to be gone.
ENDING_S = 3.0
# What SGLang's log lines begin with.
TIMESTAMP = re.compile(r"^\[[^]]*\d:\d\d[^]]*\] ")


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def usable_cores() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def server_environment() -> dict[str, str]:
    """The environment servers are started with: all cores for the model, and no look-ups in a model hub."""
    return os.environ | {
        "OMP_NUM_THREADS": str(usable_cores()),
        # Idle threads sleep instead of spinning: where anything else wants the cores, spinning costs a factor of ten.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


class Server:
    """Context manager: the server answers on ``url`` inside the block and no process of it is left after the block.

    That also holds when the block ends by an exception or Ctrl-C, and when this process is killed: see
    :mod:`nsd_sglang.demo.guard`.

    Args:
        name: what progress lines and errors call it.
        arguments: of ``python -m sglang.launch_server``, without host and port.
        log_path: file for its output, overwritten.
        timeout_s: seconds to wait for the health check before giving up.
        program: the command instead of launch_server (tests); ``--host`` and ``--port`` are appended.
        environment: additions to :func:`server_environment`; a value of None removes the variable.

    Raises DemoError from ``__enter__`` when the server ends or is not healthy in time, with the end of its log.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        log_path: Path,
        timeout_s: float = 600.0,
        program: list[str] | None = None,
        environment: dict[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self.log_path = Path(log_path)
        self.timeout_s = timeout_s
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        program = program or [sys.executable, "-m", "sglang.launch_server"]
        self.command = [*program, *arguments, "--host", HOST, "--port", str(self.port)]
        merged = server_environment() | (environment or {})
        self.environment = {name: value for name, value in merged.items() if value is not None}
        self.startup_s = 0.0
        self._guard: subprocess.Popen | None = None
        # Proxies are for the outside; a server on loopback is never reached through one.
        self.http = requests.Session()
        self.http.trust_env = False

    def __enter__(self) -> Server:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "wb") as log:
            self._guard = subprocess.Popen(
                # -P: the guard's folder stays off the import path.
                [sys.executable, "-P", guard.__file__, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.log_path.parent,
                start_new_session=True,
            )
        try:
            self._wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and everything it started; returns when they are gone. Harmless when called twice."""
        if self._guard is None:
            return
        ended, self._guard = self._guard, None
        self.http.close()
        ended.stdin.close()
        try:
            ended.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(ended.pid, signal.SIGKILL)
            ended.wait()

    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""
        return "\n".join(last_lines(self.log_path, LOG_TAIL_LINES))

    def check_alive(self, within_s: float = 0.0) -> None:
        """Raise DemoError with the log's end if the server has ended, or ends ``within_s`` seconds: a broken connection is
        noticed before the end of the process behind it."""
        deadline = time.monotonic() + within_s
        while (code := self._guard.poll() if self._guard else None) is None and time.monotonic() < deadline:
            time.sleep(POLL_S / 10)
        if code is not None:
            raise DemoError(f"the {self.name} server ended with exit code {code}; {self._log_report()}")

    def _log_report(self) -> str:
        return f"its log is {self.log_path} and ends with:\n{self.log_tail()}"

    def _wait_healthy(self) -> None:
        begin = time.monotonic()
        progress = _Progress(f"Starting the {self.name} server")
        try:
            while not self._is_healthy():
                self.check_alive()
                elapsed = time.monotonic() - begin
                if elapsed > self.timeout_s:
                    raise DemoError(f"the {self.name} server was not ready after {elapsed:.0f} s; {self._log_report()}")
                progress.show(elapsed, _last_message(self.log_path))
                time.sleep(POLL_S)
        finally:
            progress.clear()
        self.startup_s = time.monotonic() - begin
        print(f"The {self.name} server is ready after {self.startup_s:.0f} s (log: {self.log_path})", flush=True)

    def _is_healthy(self) -> bool:
        try:
            return self.http.get(f"{self.url}/health", timeout=HEALTH_TIMEOUT_S).status_code == 200
        except requests.RequestException:
            return False


class _Progress:
    """Elapsed seconds and the last log line: redrawn in place on a terminal, a line now and then elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.terminal = sys.stdout.isatty()
        self.next_s = 0.0

    def show(self, elapsed_s: float, detail: str) -> None:
        text = f"{self.title}: {elapsed_s:.0f} s  {detail}"
        width = shutil.get_terminal_size().columns - 1
        if self.terminal:
            print(f"\r{text[:width].ljust(width)}", end="", flush=True)
        elif elapsed_s >= self.next_s:
            self.next_s = elapsed_s + QUIET_PROGRESS_S
            print(text[:width], flush=True)

    def clear(self) -> None:
        if self.terminal:
            print("\r" + " " * (shutil.get_terminal_size().columns - 1), end="\r", flush=True)


def _last_message(path: Path) -> str:
    """The log's newest line that SGLang wrote with a time stamp, without it; else its newest line of any kind."""
    lines = last_lines(path, 50)
    stamped = [line for line in lines if TIMESTAMP.match(line)]
    return TIMESTAMP.sub("", (stamped or lines or [""])[-1]).strip()


def last_lines(path: Path, count: int, block: int = 65536) -> list[str]:
    """The last non-empty lines of a text file, read from its last ``block`` bytes."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - block))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # A progress bar redraws its line with carriage returns; only what it shows last counts.
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines() if line.strip()]
    return lines[-count:]
