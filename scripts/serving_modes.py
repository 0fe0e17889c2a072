"""The serving modes that scripts/serving_checks.py goes through, each with a proof that it happened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import requests

CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6")
ONE_STEP = ("--speculative-num-steps", "1", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "3")
# A pool that a handful of requests fills, and a scheduler that takes them in without keeping room for their answers.
TIGHT = ("--max-total-tokens", "512", "--schedule-conservativeness", "0.01")
CONTEXT = 1024  # of the tiny models
SHORT_CONTEXT = 128


@dataclasses.dataclass(frozen=True)
class Mode:
    """One serving mode.

    args: server arguments. draft: which tiny draft. shape: of the tree. env: more environment. proof: raises
    AssertionError unless the mode happened; gets the server and the answers of the waves.
    """

    args: tuple[str, ...] = ()
    draft: str = "eagle"
    shape: tuple[str, ...] = TREE
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    proof: Callable[[Any, list[dict]], None] | None = None


def _cached(server: Any, answers: list[dict]) -> None:
    assert sum(answer["meta_info"]["cached_tokens"] for answer in answers) > 100, "nothing came from the cache"


def _not_cached(server: Any, answers: list[dict]) -> None:
    assert sum(answer["meta_info"]["cached_tokens"] for answer in answers) == 0, "the cache is on"


def _retracted(server: Any, answers: list[dict]) -> None:
    assert "Retract requests" in server.log.read_text(), "nothing was retracted"


def _chunked(server: Any, answers: list[dict]) -> None:
    lines = [line for line in server.log.read_text().splitlines() if "Prefill batch" in line]
    tokens = [int(line.split("#new-token: ")[1].split(",")[0]) for line in lines]
    assert max(tokens) <= 32 and len(lines) > 20, (max(tokens), len(lines))


def _overlap(expected: bool) -> Callable[[Any, list[dict]], None]:
    def proof(server: Any, answers: list[dict]) -> None:
        assert server.info()["disable_overlap_schedule"] is not expected, "overlap scheduling is not what was asked for"

    return proof


def _schedulers(server: Any, answers: list[dict]) -> None:
    loads = requests.get(server.url + "/v1/loads", timeout=60).json()["loads"]
    assert len(loads) == 2, loads
    text = requests.get(server.url + "/metrics", timeout=60).text
    counted = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("sglang:spec_nsd_tv_bound_count")]
    assert sum(counted) >= len(answers), (counted, len(answers))


def _undrafted(server: Any, answers: list[dict]) -> None:
    assert "-> 0 (ema" in server.log.read_text(), "no round without a draft"


def _workers(server: Any, answers: list[dict]) -> None:
    started = server.log.read_text().count("Start multi-tokenizer worker process")
    assert started == 2, f"{started} tokenizer workers"
    statuses = [server.post("/generate", input_ids=[1], sampling_params={"custom_params": {"nsd_x": 1}}).status_code for _ in range(8)]
    assert statuses == [400] * 8, statuses
    assert all("nsd_tv_bound" in answer["meta_info"] for answer in answers), "answers do not say what they got"


def _no_more_than_one_at_once(server: Any, answers: list[dict]) -> None:
    running = [line.split("#running-req: ")[1].split(",")[0] for line in server.log.read_text().splitlines() if "Decode batch" in line]
    assert set(running) == {"1"}, set(running)


MODES = {
    "radix cache on": Mode(proof=_cached),
    "radix cache off": Mode(("--disable-radix-cache",), proof=_not_cached),
    "chunked prefill of 32": Mode(("--chunked-prefill-size", "32"), proof=_chunked),
    "chunked prefill, standalone draft": Mode(("--chunked-prefill-size", "32"), draft="standalone", proof=_chunked),
    "retraction, EAGLE tree": Mode(TIGHT, proof=_retracted),
    "retraction, standalone chain": Mode(TIGHT, draft="standalone", shape=CHAIN, proof=_retracted),
    "retraction at every ninth step": Mode(env={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"}),
    "retraction, overlap off": Mode((*TIGHT, "--disable-overlap-schedule"), proof=_retracted),
    "page size 16": Mode(("--page-size", "16"), shape=CHAIN, proof=_cached),
    "page size 16, standalone draft": Mode(("--page-size", "16"), draft="standalone", shape=CHAIN, proof=_cached),
    "page size 16, retraction": Mode(("--page-size", "16", *TIGHT), shape=CHAIN, proof=_retracted),
    "overlap on": Mode(proof=_overlap(True)),
    "overlap off": Mode(("--disable-overlap-schedule",), proof=_overlap(False)),
    "overlap off, standalone draft": Mode(("--disable-overlap-schedule",), draft="standalone", proof=_overlap(False)),
    "EAGLE-3 tree": Mode(draft="eagle3"),
    "top-k proposals": Mode(("--nsd-proposals", "topk")),
    "one drafting step": Mode(shape=ONE_STEP),
    # With eight requests or more SGLang may draft nothing at all.
    "adaptive draft length": Mode(("--speculative-adaptive",), shape=CHAIN, proof=_undrafted),
    "adaptive draft length, skipped passes": Mode(
        ("--speculative-adaptive",), shape=CHAIN, env={"SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND": "1"}, proof=_undrafted
    ),
    "adaptive draft length, EAGLE-3, top-k proposals": Mode(
        ("--speculative-adaptive", "--nsd-proposals", "topk"), draft="eagle3", shape=CHAIN, proof=_undrafted
    ),
    "one request at once": Mode(("--max-running-requests", "1"), proof=_no_more_than_one_at_once),
    "EAGLE head past its own limit": Mode(draft="short eagle", env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}),
    "standalone draft past its own limit": Mode(
        draft="short standalone", env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    ),
    "two ranks, EAGLE tree": Mode(("--tp", "2")),
    "two ranks, standalone chain": Mode(("--tp", "2"), draft="standalone", shape=CHAIN),
    # A worker that starts slowly on a busy machine is not killed and started again.
    "two tokenizer workers": Mode(
        ("--tokenizer-worker-num", "2"), env={"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300"}, proof=_workers
    ),
    "two schedulers": Mode(("--dp", "2", "--enable-metrics"), proof=_schedulers),
}
