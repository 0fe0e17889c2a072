"""The diagnostics suite: verify steps recorded while NSD serves a few prompts, and the figures from them.

Writes ``traces/ARM.jsonl`` and ``diagnostics.json`` (`trace_figures`). Arms: a chain of sampled proposals, the setting that the
paper's section 4.4 looks at, then the run's tree with each kind of proposals.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from nsd_sglang.benchmarks import arms, store
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.benchmarks.trace_figures import NUCLEUS, aggregate

SUITE = "diagnostics"
FILE = "diagnostics.json"
NUM_PROMPTS = 24
OUTPUT_LEN = 64
CONCURRENCY = 8
ANSWER_TIMEOUT_S = 600.0

__all__ = ["aggregate", "run", "steps"]


def recorded_arms(settings: Settings) -> list[Arm]:
    """What is served: at the paper's threshold if it is one of the run's, else at the run's largest."""
    threshold = NUCLEUS if NUCLEUS in settings.thresholds or not settings.thresholds else max(settings.thresholds)
    chain = (settings.num_steps, 1, settings.num_steps + 1)
    made = [arms.nsd(settings, threshold, "sampled", chain, f"NSD {threshold:g} sampled, chain")]
    made += [arms.nsd(settings, threshold, proposals) for proposals in settings.proposals]
    # The run's own tree may be that chain.
    return [arm for place, arm in enumerate(made) if place == 0 or arm.server_arguments != made[0].server_arguments]


def steps(context: Context) -> int:
    """How many steps `run` is going to report."""
    return len(_left(context))


def run(context: Context) -> None:
    """Record and aggregate each arm that diagnostics.json does not have; an arm that fails is one of `failures`."""
    for arm in _left(context):
        before = len(context.failures)
        context.progress.step(SUITE, f"{SUITE}: {arm.name}, recording verify steps")
        with context.attempt(arm.name, SUITE):
            figures = aggregate({arm.name: _record(context, arm)})["arms"]
            if not figures[arm.name]["nodes"]:
                raise BenchError("no drafted token was recorded; --temperature 0 and greedy requests record none")
            done = _finished(context)
            store.write_json(context.path(FILE), {"arms": done | figures})
            context.progress.done(SUITE, _summary(figures[arm.name]))
        if len(context.failures) > before:
            context.progress.drop(SUITE)


def _left(context: Context) -> list[Arm]:
    finished = _finished(context)
    return [arm for arm in recorded_arms(context.settings) if arm.name not in finished]


def _finished(context: Context) -> dict[str, Any]:
    path = context.path(FILE)
    try:
        return json.loads(path.read_text(encoding="utf-8"))["arms"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: this is no {FILE} of a run ({error}); delete it to record again") from None


def _record(context: Context, arm: Arm) -> list[Path]:
    """Serve the prompts with `arm` and return its traces, one a data-parallel replica."""
    trace = context.path("traces", f"{store.slug(arm.name)}.jsonl").resolve()
    for old in (trace, *_replicas(trace)):
        old.unlink(missing_ok=True)
    settings = context.settings
    sampling = settings.sampling_params() | {"max_new_tokens": OUTPUT_LEN}
    if sampling["temperature"] == 0:  # greedy requests are verified by SGLang itself
        sampling["temperature"] = 1.0
    prompts = context.prompts(NUM_PROMPTS)
    with context.server(arm, SUITE, ("--nsd-trace", str(trace))) as server:

        def ask(prompt: str) -> None:
            body = settings.request_body | {"text": prompt, "sampling_params": sampling}
            try:
                reply = server.http.post(f"{server.url}/generate", json=body, timeout=ANSWER_TIMEOUT_S)
            except requests.RequestException as error:
                server.check_alive()
                raise BenchError(f"no answer: {error}; the server's log is {server.log_path}") from error
            if reply.status_code != 200:
                raise BenchError(f"answer {reply.status_code}: {reply.text[:300]}; the server's log is {server.log_path}")

        pool = ThreadPoolExecutor(CONCURRENCY)
        try:
            list(pool.map(ask, prompts))
        finally:  # after Ctrl-C the server is stopped, which ends the requests still under way
            pool.shutdown(wait=False, cancel_futures=True)
    return [path for path in (trace, *_replicas(trace)) if path.exists()]


def _replicas(trace: Path) -> list[Path]:
    return sorted(trace.parent.glob(f"{trace.stem}.dp*{trace.suffix}"))


def _summary(figures: dict[str, Any]) -> str:
    inside, top = figures["rejected_in_nucleus"], figures["rejected_in_top_ten"]
    if inside is None:
        return f"{figures['nodes']} positions, nothing rejected"
    return f"{figures['nodes']} positions, {figures['rejected']} rejected tokens: {inside:.1%} in the nucleus, {top:.1%} in the top ten"
