"""One arm of the comparison: requests to a running server, and the figures that follow from the answers.

Words used here and in the report:

- *verify call*: one forward pass of the target model after the prompt was read. Without speculation every such pass decodes
  one token; with speculation it verifies a tree of drafted tokens.
- *decoded tokens*: output tokens less one per answer, since the prompt's own forward pass yields the first.
- *accepted length*: decoded tokens per verify call, hence exactly 1 without speculation.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import requests
from tqdm import tqdm

from nsd_sglang.demo.cache import DemoError
from nsd_sglang.demo.server import Server

# One answer's limit: far above what a slow machine needs, so that only a hanging server meets it.
ANSWER_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Answer:
    """One completed request."""

    text: str
    output_tokens: int
    verify_calls: int
    latency_s: float
    meta_info: dict = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """What one server did with all timed prompts. ``wall_s`` spans the first request's start to the last one's end."""

    name: str
    command: list[str]
    startup_s: float
    wall_s: float
    answers: list[Answer]

    @property
    def output_tokens(self) -> int:
        return sum(answer.output_tokens for answer in self.answers)

    @property
    def decoded_tokens(self) -> int:
        return self.output_tokens - len(self.answers)

    @property
    def verify_calls(self) -> int:
        return sum(answer.verify_calls for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s

    @property
    def accepted_length(self) -> float:
        return self.decoded_tokens / self.verify_calls if self.verify_calls else float("nan")

    @property
    def verify_calls_per_token(self) -> float:
        return self.verify_calls / self.decoded_tokens if self.decoded_tokens else float("nan")


def answer_from(reply: dict, latency_s: float) -> Answer:
    """Read an answer of SGLang's ``/generate``; DemoError when it lacks the counts that the figures need."""
    try:
        meta = reply["meta_info"]
        output_tokens = int(meta["completion_tokens"])
        # Absent without speculation: there each decoded token is one forward pass.
        verify_calls = int(meta.get("spec_verify_ct", output_tokens - 1))
        return Answer(reply["text"], output_tokens, verify_calls, latency_s, meta)
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(f"the server's answer has no usable token counts: {str(reply)[:200]}") from error


def run_prompts(
    server: Server, prompts: list[list[int]], sampling: dict, concurrency: int, title: str
) -> tuple[list[Answer], float]:
    """Send token-id ``prompts`` in order, ``concurrency`` at a time. Returns the answers in that order and wall seconds.

    Raises DemoError, with the log's end if the server has died, when a request fails.
    """
    pool = ThreadPoolExecutor(max_workers=concurrency)
    begin = time.monotonic()
    try:
        jobs = {pool.submit(_ask, server, prompt, sampling): index for index, prompt in enumerate(prompts)}
        answers: list[Answer | None] = [None] * len(prompts)
        tokens = 0
        with _bar(len(prompts), title) as bar:
            for job in as_completed(jobs):
                answer = answers[jobs[job]] = job.result()
                tokens += answer.output_tokens
                bar.set_postfix_str(f"{tokens / (time.monotonic() - begin):.1f} tokens/s", refresh=False)
                bar.update()
        return answers, time.monotonic() - begin
    finally:
        # After Ctrl-C or a failure the caller stops the server, which ends the requests still under way.
        pool.shutdown(wait=False, cancel_futures=True)


def measure(
    server: Server, prompts: list[list[int]], warm_up: list[list[int]], sampling: dict, concurrency: int
) -> Arm:
    """Warm the server up with ``warm_up`` (untimed), then time ``prompts``."""
    run_prompts(server, warm_up, sampling, concurrency, f"{server.name}: warm-up")
    answers, wall_s = run_prompts(server, prompts, sampling, concurrency, f"{server.name}: timed  ")
    return Arm(server.name, server.command, server.startup_s, wall_s, answers)


def _ask(server: Server, prompt: list[int], sampling: dict) -> Answer:
    begin = time.monotonic()
    try:
        reply = server.http.post(
            f"{server.url}/generate", json={"input_ids": prompt, "sampling_params": sampling}, timeout=ANSWER_TIMEOUT_S
        )
        reply.raise_for_status()
        body = reply.json()
    except requests.RequestException as error:
        server.check_alive()
        raise DemoError(f"the {server.name} server did not answer a request: {error}; its log is {server.log_path}") from error
    return answer_from(body, time.monotonic() - begin)


def _bar(total: int, title: str) -> tqdm:
    quiet = {} if sys.stdout.isatty() else {"mininterval": 10.0}
    layout = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} answers, {elapsed} elapsed, {remaining} left {postfix}"
    return tqdm(total=total, desc=title, bar_format=layout, file=sys.stdout, dynamic_ncols=True, **quiet)
