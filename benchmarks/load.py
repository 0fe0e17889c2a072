"""The load: sglang.bench_serving as a guarded process, and the warm-up that precedes every timed unit."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

from nsd_sglang.benchmarks import bench_client
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.demo import guard
from nsd_sglang.demo.server import ENDING_S, HOST, Server, last_lines

POLL_S = 0.5
WARM_UP_TOKENS = 16
WARM_UP_TIMEOUT_S = 600.0
LOG_LINES = 12


class LoadMaker:
    """Context manager around :mod:`bench_client`; nothing of it survives the block or this process.

    program: instead of bench_client (tests); the socket's path is appended.
    """

    def __init__(self, log: Path, environment: dict[str, str] | None = None, program: list[str] | None = None) -> None:
        self.log = Path(log)
        # What a proxy is for lies outside of this machine.
        self._environment = os.environ | {"NO_PROXY": HOST, "no_proxy": HOST, "TOKENIZERS_PARALLELISM": "false"} | (environment or {})
        self._program = program or [sys.executable, "-P", bench_client.__file__]
        self._guard: subprocess.Popen | None = None
        self._connection: socket.socket | None = None

    def __enter__(self) -> LoadMaker:
        return self

    def __exit__(self, *_exc) -> None:
        self.stop()

    def run(self, arguments: list[str], log: Path, server: Server) -> None:
        """Run bench_serving with ``arguments`` against ``server``; its output goes to ``log``.

        Raises DemoError when the server ends meanwhile, BenchError with the log's end when bench_serving fails.
        """
        try:
            connection = self._started()
            connection.sendall(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")
            while not select.select([connection], [], [], POLL_S)[0]:
                server.check_alive()
            answer = connection.recv(64)
        except OSError as error:
            self.stop()
            raise BenchError(f"the load maker cannot be reached: {error}; its log is {self.log}") from None
        except BaseException:
            self.stop()
            raise
        if not answer.strip():
            self.stop()
            raise BenchError(f"the load maker ended; its log is {self.log} and ends with:\n{_end(self.log)}")
        code = int(answer)
        if code != 0:
            server.check_alive(ENDING_S)
            raise BenchError(f"sglang.bench_serving ended with exit code {code}; its log is {log} and ends with:\n{_end(log)}")

    def stop(self) -> None:
        """End it with everything it runs; it starts again when it is needed again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._guard is not None:
            ended, self._guard = self._guard, None
            ended.stdin.close()
            ended.wait()

    def _started(self) -> socket.socket:
        if self._connection is not None:
            return self._connection
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="nsd-bench-") as folder, socket.socket(socket.AF_UNIX) as listener:
            address = os.path.join(folder, "socket")
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(POLL_S)
            with open(self.log, "wb") as log:
                self._guard = subprocess.Popen(
                    [sys.executable, "-P", guard.__file__, *self._program, address],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            while True:
                try:
                    self._connection, _ = listener.accept()
                    return self._connection
                except TimeoutError:
                    if self._guard.poll() is not None:
                        raise BenchError(
                            f"the load maker ended with exit code {self._guard.returncode}; its log is {self.log} and ends "
                            f"with:\n{_end(self.log)}"
                        ) from None


def _end(log: Path) -> str:
    return "\n".join(last_lines(log, LOG_LINES))


def command(settings: Settings, url: str, concurrency: int, repeat: int, output: Path) -> list[str]:
    """Arguments of ``python -m sglang.bench_serving`` for one unit: the same for every arm but for url and output."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    number = settings.num_prompts[settings.concurrency.index(concurrency)]
    words = ["--backend", "sglang", "--host", host, "--port", port, "--model", settings.model]
    words += ["--tokenizer", settings.tokenizer, "--dataset-name", settings.dataset]
    if settings.dataset_path is not None:
        words += ["--dataset-path", settings.dataset_path]
    if settings.dataset.startswith("random"):
        words += ["--random-input-len", str(settings.input_len), "--random-output-len", str(settings.output_len)]
        words += ["--random-range-ratio", "1.0"]
    else:
        words += ["--sharegpt-output-len", str(settings.output_len)]
    words += ["--num-prompts", str(number), "--max-concurrency", str(concurrency), "--seed", str(settings.seed + repeat)]
    words += ["--temperature", f"{settings.temperature:g}"]
    body = dict(settings.request_body)
    if "sampling_params" in body:
        # bench_serving replaces its own sampling parameters by those of the body.
        body["sampling_params"] = settings.sampling_params()
    if body:
        words += ["--extra-request-body", json.dumps(body)]
    if settings.stop_at_eos:
        words += ["--disable-ignore-eos"]
    if settings.apply_chat_template:
        words += ["--apply-chat-template"]
    # Warmed up before, with prompts that the timed part does not have; the prefix cache is emptied in between.
    words += ["--warmup-requests", "0", "--flush-cache", "--disable-tqdm", "--ready-check-timeout-sec", "30"]
    return [*words, "--output-file", str(output), "--output-details"]


def warm_up(settings: Settings, server: Server, concurrency: int) -> int:
    """Send the warm-up before a unit, at its concurrency; returns the number of requests, the same for every arm.

    The prompts are of no dataset. Raises BenchError or DemoError when an answer fails.
    """
    count = settings.warm_up_requests
    sampling = settings.sampling_params() | {"max_new_tokens": min(WARM_UP_TOKENS, settings.output_len)}

    def ask(index: int) -> None:
        text = f"Story {index}: a lighthouse keeper finds a letter on the shore, and begins to read it. Dear"
        body = settings.request_body | {"text": text, "sampling_params": sampling}
        try:
            reply = server.http.post(f"{server.url}/generate", json=body, timeout=WARM_UP_TIMEOUT_S)
        except requests.RequestException as error:
            server.check_alive(ENDING_S)
            raise BenchError(f"the {server.name} server did not answer the warm-up: {error}; its log is {server.log_path}") from None
        if reply.status_code != 200:
            raise BenchError(f"the {server.name} server refused the warm-up: {reply.text.strip()[:300]}")

    with ThreadPoolExecutor(min(concurrency, count)) as pool:
        list(pool.map(ask, range(count)))
    return count
