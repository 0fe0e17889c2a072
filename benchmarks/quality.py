"""The suite ``quality``: what the arms write, judged by the exact target, and HumanEval pass@1.

Every arm answers the same requests: prompts of the dataset (suite ``quality`` in the results) and HumanEval problems (suite
``humaneval``), all at one explicit temperature. Then one server without speculation scores every answer, plain decoding's
own included, token for token (:mod:`nsd_sglang.benchmarks.likelihood`), and the programs are run (:mod:`.humaneval`).
An arm that samples from the target exactly has, in expectation, plain decoding's log probability per token, which is minus its
entropy at temperature 1: a check on the measurement. Keeping to what the target finds most likely raises the one and
lowers the other; taking the draft's choice among merely plausible tokens does the opposite.

Answers go to ``raw/quality.jsonl`` as they are made and to ``quality.jsonl`` once scored, so that a resumed run repeats neither.
Stock rejection sampling is not among the arms: it is exact as stock speculation is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import requests

from nsd_sglang.benchmarks import arms as arms_module
from nsd_sglang.benchmarks import humaneval, run_files, sandbox, store
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.likelihood import Transform, score
from nsd_sglang.benchmarks.quality_requests import Request, chat_model, planned, vocabulary
from nsd_sglang.benchmarks.quality_summary import quality_groups
from nsd_sglang.benchmarks.text_stats import text_stats
from nsd_sglang.demo.cache import DemoError
from nsd_sglang.demo.server import Server

SUITE = "quality"
ANSWERS = "raw/quality.jsonl"
SCORED = "quality.jsonl"
KEY = ("suite", "arm", "prompt", "sample")
CONCURRENCY = 8
REQUEST_TIMEOUT_S = 600.0
DYING_POLLS = 20


def chosen_arms(context: Context) -> list[Arm]:
    """The arms whose answers are compared: plain decoding last, since its server stays for the scoring."""
    speculating = [arm for arm in context.arms if arm.kind != "plain" and "--speculative-use-rejection-sampling" not in arm.server_arguments]
    return [*speculating, *[arm for arm in context.arms if arm.kind == "plain"]]


def steps(context: Context) -> int:
    """One for each arm that has answers to make, and one for the scoring."""
    answered = context.finished(ANSWERS, ("arm",))
    return sum((arm.name,) not in answered for arm in chosen_arms(context)) + 1


def run(context: Context) -> None:
    """Make and score what is missing. Arms that fail are entered in ``context.failures``; the others' answers are kept.

    Raises:
        BenchError: the sampling parameters cannot be scored (temperature 0, penalties, ...).
    """
    transform = Transform.of(context.settings.sampling_params())
    todo = planned(context)
    context.path(ANSWERS)
    for arm in chosen_arms(context):
        if arm.kind != "plain" and _missing(context, arm, todo):
            with context.attempt(arm.name, SUITE), context.server(arm, SUITE, concurrency=CONCURRENCY) as server:
                _answer(context, server, arm, todo)
    plain = next((arm for arm in context.arms if arm.kind == "plain"), None)
    unmade = plain and _missing(context, plain, todo)
    if not unmade and not _unscored(context, todo):
        return
    with context.attempt("plain", SUITE):
        with context.server(plain or arms_module.plain(), SUITE, concurrency=CONCURRENCY) as server:
            if unmade:
                _answer(context, server, plain, todo)
            _score(context, server, todo, transform)


def _missing(context: Context, arm: Arm, todo: list[Request]) -> list[Request]:
    done = context.finished(ANSWERS, KEY)
    return [request for request in todo if (request.suite, arm.name, request.prompt, request.sample) not in done]


def _answer(context: Context, server: Server, arm: Arm, todo: list[Request]) -> None:
    missing = _missing(context, arm, todo)
    context.progress.step(SUITE, f"quality: {arm.name} answers {len(missing)} requests")
    begin, tokens = time.monotonic(), 0

    def one(request: Request) -> dict[str, Any]:
        sent = time.monotonic()
        reply = ask(server, {"input_ids": request.input_ids, "sampling_params": request.sampling_params})
        return _line(arm, request, reply, time.monotonic() - sent)

    for line in _each(one, missing):
        context.append(line, ANSWERS)
        tokens += len(line["output_ids"])
    context.progress.done(SUITE, f"{tokens} tokens, {tokens / (time.monotonic() - begin):.1f} tokens/s")


def _line(arm: Arm, request: Request, reply: dict, seconds: float) -> dict[str, Any]:
    try:
        meta = reply["meta_info"]
        return {
            "suite": request.suite,
            "arm": arm.name,
            "prompt": request.prompt,
            "sample": request.sample,
            "text": reply["text"],
            "output_ids": [int(token) for token in reply["output_ids"]],
            "finish": meta["finish_reason"]["type"],
            # Absent without NSD.
            "rescued": meta.get("nsd_rescued"),
            "tv_bound": meta.get("nsd_tv_bound"),
            "seconds": seconds,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"the {arm.name} server's answer lacks {error}: {str(reply)[:200]}") from error


def _unscored(context: Context, todo: list[Request]) -> list[tuple[Request, dict]]:
    """Answers that wait for their score, with their requests. Those of another schedule are left alone."""
    asked = {(request.suite, request.prompt, request.sample): request for request in todo}
    names = {arm.name for arm in chosen_arms(context)}
    done = context.finished(SCORED, KEY)
    lines = {tuple(line[name] for name in KEY): line for line in store.read_lines(context.path(ANSWERS))}
    waiting = ((asked.get((suite, prompt, sample)), line) for (suite, arm, prompt, sample), line in lines.items() if arm in names)
    return [(request, line) for request, line in waiting if request and tuple(line[name] for name in KEY) not in done]


def _score(context: Context, server: Server, todo: list[Request], transform: Transform) -> None:
    waiting = _unscored(context, todo)
    vocab_size = vocabulary(context.settings)
    is_chat = chat_model(context.settings)
    context.progress.step(SUITE, f"quality: the target scores {len(waiting)} answers")
    if any(request.problem for request, _ in waiting):
        context.say(f"    HumanEval's programs run in: {sandbox.isolation()}")

    def one(pair: tuple[Request, dict]) -> dict[str, Any]:
        request, line = pair
        ids = line["output_ids"]
        result = score(lambda body: ask(server, body), request.input_ids, ids, transform, vocab_size)
        outcome = humaneval.check(request.problem, line["text"], is_chat) if request.problem else None
        kept = {key: value for key, value in line.items() if key != "output_ids"}
        return kept | {
            "tokens": len(ids),
            "logprob": result.logprob,
            "logprob_error": result.logprob_error,
            "entropy": result.entropy,
            "entropy_error": result.entropy_error,
            "outside": result.outside,
            **text_stats(ids),
            "passed": outcome.passed if outcome else None,
            "reason": outcome.reason if outcome else None,
        }

    passed = 0
    # Two at a time: a program that runs into its time limit must not hold up the others.
    for line in _each(one, waiting, workers=2):
        context.append(line, SCORED)
        passed += bool(line["passed"])
    context.progress.done(SUITE, f"{passed} HumanEval answers passed")


def _each(work: Callable[[Any], dict], items: list, workers: int = CONCURRENCY) -> Iterator[dict]:
    """Results of ``work`` as they come. After a failure nothing new begins, and it is raised once what was under way has ended."""
    pool = ThreadPoolExecutor(max_workers=workers)
    jobs = [pool.submit(work, item) for item in items]
    failure = None
    try:
        for job in as_completed(jobs):
            if job.cancelled():
                continue
            if job.exception() is None:
                yield job.result()
            elif failure is None:
                failure = job.exception()
                for waiting in jobs:
                    waiting.cancel()
        if failure is not None:
            raise failure
    finally:
        # After Ctrl-C the server is stopped, which ends the requests under way.
        pool.shutdown(wait=False, cancel_futures=True)


def ask(server: Server, body: dict) -> dict:
    """``POST /generate``. Raises DemoError, with the log's end if the server has died."""
    try:
        reply = server.http.post(f"{server.url}/generate", json=body, timeout=REQUEST_TIMEOUT_S)
        reply.raise_for_status()
        return reply.json()
    except requests.RequestException as error:
        # A dying server closes its connections a moment before it is gone.
        for _ in range(DYING_POLLS):
            server.check_alive()
            time.sleep(0.1)
        raise DemoError(f"the {server.name} server did not answer a request: {error}; its log is {server.log_path}") from error


def summary(directory: Path) -> list[dict]:
    """The answers of a run directory by suite and arm, with intervals and paired differences to plain and stock decoding.

    See :func:`nsd_sglang.benchmarks.quality_summary.quality_groups`, which this reads the directory for.
    """
    files = run_files.read(directory)
    return quality_groups(files.quality, files.arms, int(files.run.get("seed") or 0))
