"""Many different requests at once, some aborted, and what the server must be like afterwards.

    .venv/bin/python scripts/soak.py --requests 200 --concurrency 32
    .venv/bin/python scripts/soak.py --seconds 600 --seed 7
    .venv/bin/python scripts/soak.py --url http://127.0.0.1:30000

Without --url it serves the tests' tiny models with SGLang's strict memory checks on; further arguments after `--` go to
that server (`-- --tp 2`). Every answer is checked (see soak_answers.py); at the end the server must be idle, with its
whole pool free, say what it said before to greedy requests, and its log must hold no error. Exit code 1 and the
failures otherwise. A case can be repeated by its seed and number.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from serving_modes import TREE
from soak_answers import Case, Limits
from soak_requests import golden_prompts, greedy_body, make_case

# SGLang's own checks: the pool is counted after every step, every KV page has one owner, and a wrong value is fatal.
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1",
    "SGLANG_INVARIANT_CHECK": "2",
}
# Words that a healthy server's log does not hold.
LOG_ERRORS = ("Traceback", "leak", "Scheduler hit an exception", "use-after-free", "double free", "without nucleus acceptance")


class Soak:
    """One soak of a running server. seed: with a case's number, it decides the case."""

    def __init__(self, url: str, limits: Limits, seed: int):
        self.url, self.limits, self.seed = url, limits, seed
        self.failures: list[str] = []
        self.counts: Counter = Counter()
        self._lock = threading.Lock()
        self.golden = self.greedy_answers()

    def greedy_answers(self) -> list[list[int]]:
        """What the server says to the golden prompts, one at a time."""
        return [self._post("/generate", greedy_body(p)).json()["output_ids"] for p in golden_prompts(self.limits, self.seed)]

    def run(self, count: int, concurrency: int, seconds: float | None = None) -> None:
        """`count` requests, or as many as start within `seconds`; `concurrency` at once."""
        until = None if seconds is None else time.monotonic() + seconds
        numbers = iter(range(count) if until is None else range(10**9))

        def worker() -> None:
            while until is None or time.monotonic() < until:
                with self._lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self.one(number)

        with ThreadPoolExecutor(concurrency) as pool:
            for done in [pool.submit(worker) for _ in range(concurrency)]:
                done.result()

    def one(self, number: int) -> None:
        """Send case `number` and check its answer."""
        dice = random.Random(f"{self.seed} {number}")
        case = make_case(dice, self.limits, self.seed)
        try:
            outcome = self._send(case, dice, number)
        except Exception as error:  # every kind is a failure of this case
            outcome = "failed"
            body = json.dumps(case.body)[:400]
            with self._lock:
                self.failures.append(f"case {number} {case.path} {case.abort or ''}: {type(error).__name__}: {error!s:.600}\n    {body}")
        with self._lock:
            self.counts[outcome] += 1

    def _send(self, case: Case, dice: random.Random, number: int) -> str:
        body = dict(case.body)
        if case.abort == "abort":
            body["rid"] = f"soak-{self.seed}-{number}-{time.monotonic_ns()}"
            threading.Timer(dice.uniform(0, 1.5), self._abort, [body["rid"]]).start()
        if case.abort == "drop":
            return self._drop(body, dice)
        if case.stream:
            answers = [self._streamed(body)]
        else:
            response = self._post(case.path, body)
            aborted = case.abort == "abort" and response.status_code != 200
            if aborted:
                assert "bort" in response.text, f"{response.status_code}: {response.text[:300]}"
                return "aborted"
            assert response.status_code == case.status, f"{response.status_code}: {response.text[:300]}"
            if case.status != 200:
                return "refused"
            answers = response.json()
            answers = answers if isinstance(answers, list) else [answers]
        assert len(answers) == case.n, len(answers)
        for answer in answers:
            for check in case.checks:
                check(answer)
        if case.greedy is not None:
            assert answers[0]["output_ids"] == self.golden[case.greedy], (answers[0]["output_ids"], self.golden[case.greedy])
        if case.abort == "abort" and answers[0]["meta_info"]["finish_reason"]["type"] == "abort":
            return "aborted"
        return "answered"

    def _post(self, path: str, body: dict, **options) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=600, **options)

    def _abort(self, rid: str) -> None:
        with contextlib.suppress(requests.RequestException):
            self._post("/abort_request", {"rid": rid})

    def _drop(self, body: dict, dice: random.Random) -> str:
        """Go away without waiting for the answer, or after some of it."""
        if dice.random() < 0.5:
            with contextlib.suppress(requests.ReadTimeout, requests.ConnectionError):
                requests.post(self.url + "/generate", json=body, timeout=(60, dice.uniform(0.05, 1.0)))
            return "dropped"
        with self._post("/generate", {**body, "stream": True}, stream=True) as response:
            assert response.status_code == 200, response.text[:300]
            for _, line in zip(range(dice.randrange(1, 6)), response.iter_lines()):
                pass
        return "dropped"

    def _streamed(self, body: dict) -> dict:
        """The last message of a stream; the ones before it must not take anything back."""
        last, text = None, ""
        with self._post("/generate", {**body, "stream": True}, stream=True) as response:
            assert response.status_code == 200, f"{response.status_code}: {response.text[:300]}"
            lines = [line.decode() for line in response.iter_lines() if line.startswith(b"data: ")]
        assert lines and lines[-1] == "data: [DONE]", lines[-1:]
        for line in lines[:-1]:
            answer = json.loads(line[6:])
            assert "error" not in answer, answer
            before = 0 if last is None else last["meta_info"]["completion_tokens"]
            assert answer["meta_info"]["completion_tokens"] >= before, (answer["meta_info"], before)
            finished = answer["meta_info"]["finish_reason"] is not None
            assert finished or answer["text"].startswith(text), (text, answer["text"])
            last, text = answer, answer["text"]
        return last

    def finish(self, seconds: float = 60) -> None:
        """The server afterwards: idle, healthy, nothing held, the same greedy answers, and all of its pool free."""
        try:
            self._wait_until_idle(seconds)
            assert self.greedy_answers() == self.golden, "greedy answers are not what they were"
            assert requests.get(self.url + "/health", timeout=60).status_code == 200
            self._wait_until_idle(seconds)
            assert self._post("/flush_cache", {}).status_code == 200, "the cache could not be flushed"
            self._wait_until_idle(seconds)
        except (AssertionError, requests.RequestException) as error:
            self.failures.append(f"afterwards: {type(error).__name__}: {error}")

    def _wait_until_idle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            held = [
                {name: load[name] for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
                for load in requests.get(self.url + "/v1/loads", timeout=60).json()["loads"]
            ]
            if not any(value for load in held for value in load.values()):
                return
            assert time.monotonic() < until, f"still held: {held}"
            time.sleep(0.2)


def limits_of(url: str, tokens: int = 256) -> Limits:
    """What a server allows, asked of it."""
    info = requests.get(url + "/server_info", timeout=60).json()
    model = requests.get(url + "/model_info", timeout=60).json()
    config = Path(model["model_path"]) / "config.json"
    vocabulary, context = 2**31, info.get("context_length")
    if config.is_file():
        fields = json.loads(config.read_text())
        vocabulary = fields.get("vocab_size", vocabulary)
        context = context or fields.get("max_position_embeddings")
    context = min(context or 4096, info.get("max_total_num_tokens") or 2**31)

    def meta(custom: dict) -> dict | None:
        params = {"temperature": 1, "max_new_tokens": 1, "custom_params": custom}
        response = requests.post(url + "/generate", json={"input_ids": [1, 2], "sampling_params": params}, timeout=600)
        return response.json()["meta_info"] if response.status_code == 200 else None

    default = meta({})
    highest = 1.0 if meta({"nsd_threshold": 1}) else default["nsd_threshold"]
    return Limits(tokens, vocabulary, context, default["nsd_threshold"], default["nsd_epsilon"], highest)


def log_errors(log: Path) -> list[str]:
    """Lines of a server's log that a healthy one does not have. What comes before the server is ready, a call of SGLang's to
    itself that is refused on a busy machine for instance, is start-up's."""
    served = log.read_text(errors="replace").partition("The server is fired up")[2]
    return [line[:300] for line in served.splitlines() if any(word in line for word in LOG_ERRORS)]


@contextlib.contextmanager
def tiny_server(folder: Path, extra: list[str], draft: str = "eagle"):
    """A server on the tests' tiny models in float32, with the strict checks and a pool small enough to run full."""
    from serving import serve
    from tiny_models import write_tiny_models

    models = write_tiny_models(folder / "models")
    nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", "0.9", "--nsd-max-threshold", "1")
    nsd += ("--speculative-draft-model-path", getattr(models, draft), *TREE)
    small = ("--max-running-requests", "16", "--max-total-tokens", "4096", "--enable-metrics")
    with serve(models.target, "--dtype", "float32", *nsd, *small, *extra, log=folder / "server.log", env=STRICT, timeout=300) as server:
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=200, help="how many requests (default 200)")
    parser.add_argument("--seconds", type=float, help="instead of a number: start requests for this long")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once (default 32)")
    parser.add_argument("--seed", type=int, default=1, help="decides every request (default 1)")
    parser.add_argument("--only", type=int, help="send the case with this number alone")
    parser.add_argument("--url", help="a running NSD server; without it one is started on the tiny models")
    parser.add_argument("--draft", choices=("eagle", "eagle3", "standalone"), default="eagle", help="tiny draft (default eagle)")
    parser.add_argument("server_args", nargs="*", metavar="-- SERVER_ARGS", help="more arguments for the started server")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        log = None
        if args.url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
            server = stack.enter_context(tiny_server(folder, args.server_args, args.draft))
            args.url, log = server.url, server.log
        soak = Soak(args.url, limits_of(args.url), args.seed)
        started = time.monotonic()
        if args.only is not None:
            soak.one(args.only)
        else:
            soak.run(args.requests, args.concurrency, args.seconds)
        took = time.monotonic() - started
        soak.finish()
        retracted = 0
        if log is not None:
            soak.failures += [f"log: {line}" for line in log_errors(log)]
            retracted = log.read_text(errors="replace").count("Retract requests")
        for failure in soak.failures[:40]:
            print(failure)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(soak.counts.items()))
        print(f"seed {args.seed}: {counts} in {took:.0f} s; retractions: {retracted}; {len(soak.failures)} failures")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
