"""A real SGLang server for tests: started on a free loopback port, and gone with all its processes afterwards.

    with serve(model, "--dtype", "float32", log=tmp_path / "server.log") as server:
        server.generate(input_ids=[1, 2, 3], sampling_params={"temperature": 0, "max_new_tokens": 8})
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import requests

# Small, and nothing that a test does not need.
SMALL = (
    "--skip-server-warmup",
    # An idle scheduler polls; a second server, and the test itself, need that core.
    "--sleep-on-idle",
    *("--max-total-tokens", "8192"),
    *("--max-running-requests", "8"),
    *("--random-seed", "1"),
    *("--log-level", "info"),
)
# Shapes of a draft.
CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6")


class Server:
    """A running server. `url` is its address, `log` the file with its output."""

    def __init__(self, url: str, log: Path, process: subprocess.Popen) -> None:
        self.url, self.log, self.process = url, log, process

    def post(self, path: str, timeout: float = 120, **body) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=timeout)

    def generate(self, **body) -> dict | list:
        """`POST /generate`; the answer, or an AssertionError with what the server said."""
        response = self.post("/generate", **body)
        assert response.status_code == 200, f"{response.status_code}: {response.text[:500]}\n{self.tail()}"
        return response.json()

    def generate_all(self, bodies: list[dict], concurrency: int = 8) -> list[dict]:
        """One `/generate` request for every body, `concurrency` at once, answers in order."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda body: self.generate(**body), bodies))

    def stream(self, path: str, timeout: float = 120, **body) -> list[dict]:
        """The events of a streamed answer, in order, without the `[DONE]` at its end."""
        response = requests.post(self.url + path, json=body | {"stream": True}, stream=True, timeout=timeout)
        assert response.status_code == 200, response.text
        lines = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
        assert lines[-1] == b"[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def flush_cache(self) -> None:
        """Empty the radix cache. Refused while requests run, so it is asked again for a while."""
        for _ in range(50):
            if self.post("/flush_cache").status_code == 200:
                return
            time.sleep(0.1)
        raise AssertionError("the cache could not be flushed\n" + self.tail())

    def info(self) -> dict:
        """`GET /server_info`: the resolved arguments and `internal_states`, where speculation reports itself."""
        return requests.get(self.url + "/server_info", timeout=60).json()

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def serve(
    model: str,
    *args: str,
    log: Path,
    env: dict[str, str | None] | None = None,
    timeout: float = 400,
):
    """Start a server and yield a `Server` once it is healthy.

    args: further command-line arguments; they come after the small defaults and win over them.
    env: additions to the environment; a value of None removes the variable.
    """
    port = free_port()
    process = _launch(model, port, args, env, log)
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait_until_healthy(server, timeout)
        yield server
    finally:
        stop(process)


def run_to_exit(model: str, *args: str, log: Path, env: dict[str, str | None] | None = None, timeout: float = 120) -> int:
    """Start a server that is expected to refuse its arguments; returns the exit code, the output lies in `log`."""
    process = _launch(model, free_port(), args, env, log)
    try:
        return process.wait(timeout)
    finally:
        stop(process)


def stop(process: subprocess.Popen) -> None:
    """End a server with every process it started, also those that left its process group."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _launch(model, port, args, env, log) -> subprocess.Popen:
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
    command += [*SMALL, *map(str, args)]
    with open(log, "wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment(env or {}), start_new_session=True
        )


def _environment(extra: dict[str, str | None]) -> dict[str, str]:
    # One thread: a tiny model gains nothing from a second, and two threads wait for each other on a busy machine.
    defaults = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    merged = {**defaults, **os.environ, **extra}
    return {k: v for k, v in merged.items() if v is not None}


def _wait_until_healthy(server: Server, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        code = server.process.poll()
        assert code is None, f"the server exited with {code}\n{server.tail()}"
        with contextlib.suppress(requests.RequestException):
            if requests.get(server.url + "/health", timeout=5).status_code == 200:
                return
        time.sleep(0.3)
    raise AssertionError(f"no healthy server within {timeout} s\n{server.tail()}")
