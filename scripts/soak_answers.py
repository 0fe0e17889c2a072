"""What the soak's answers must satisfy. A check takes one answer and raises AssertionError; it looks at what the answer and
its meta_info say, and at nothing inside the server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["red", "green"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
REGEX = "(ab|cd){1,6}x[0-9]{2}"


@dataclass(frozen=True)
class Limits:
    """What the server under test has and allows.

    tokens: ids from 0 to this are prompts. vocabulary: ids an answer may hold. context: longest prompt and answer
    together. threshold, epsilon: in force without a request's own. highest: the highest threshold a request may ask for.
    """

    tokens: int
    vocabulary: int
    context: int
    threshold: float
    epsilon: float | None
    highest: float


@dataclass
class Case:
    """One request.

    path: endpoint. body: JSON. stream: whether it is streamed. status: expected HTTP status. abort: None, "abort"
    (/abort_request), "drop" (the client goes away). checks: each gets one answer (of `n`). greedy: index of a golden
    prompt whose answer is known, or None.
    """

    path: str
    body: dict
    stream: bool = False
    status: int = 200
    abort: str | None = None
    n: int = 1
    checks: list[Callable[[dict], None]] = field(default_factory=list)
    greedy: int | None = None


def common_check(case: Case, limits: Limits, control: tuple[float, float | None]) -> Callable[[dict], None]:
    """What holds of every `/generate` answer, aborted ones included."""
    params = case.body["sampling_params"]

    def check(answer: dict) -> None:
        meta, ids = answer["meta_info"], answer["output_ids"]
        reason = meta["finish_reason"]["type"]
        if reason == "abort" and case.abort == "abort" and "nsd_threshold" not in meta:
            return  # it had not been scheduled
        assert reason in (("stop", "length", "abort") if case.abort else ("stop", "length")), meta["finish_reason"]
        assert all(0 <= token < limits.vocabulary for token in ids), ids
        assert len(ids) == meta["completion_tokens"] <= params["max_new_tokens"], (len(ids), meta["completion_tokens"])
        if reason == "length":
            assert len(ids) == params["max_new_tokens"], (len(ids), params["max_new_tokens"])
        if params.get("ignore_eos") and not params.get("stop") and not case.abort:
            assert reason == "length", meta["finish_reason"]
        if reason != "abort":
            assert len(ids) >= params.get("min_new_tokens", 0), len(ids)
        threshold, epsilon = control
        assert meta["nsd_threshold"] == threshold, (meta["nsd_threshold"], threshold)
        assert (meta["nsd_epsilon"] is None) == (epsilon is None), (meta["nsd_epsilon"], epsilon)
        assert epsilon is None or math.isclose(meta["nsd_epsilon"], epsilon, abs_tol=1e-9), (meta["nsd_epsilon"], epsilon)
        assert meta["nsd_tv_bound"] >= 0 and 0 <= meta["nsd_rescued"] <= meta["completion_tokens"], meta
        if threshold == 0 or epsilon == 0:
            assert meta["nsd_rescued"] == 0 and meta["nsd_agreement_bound"] == 1, meta
        banned = [int(token) for token, bias in (params.get("logit_bias") or {}).items() if bias <= -100]
        assert not set(banned) & set(ids), (banned, ids)

    return check


def stop_check(stops: list[str]) -> Callable[[dict], None]:
    def check(answer: dict) -> None:
        for stop in stops:
            text = answer["text"]
            if answer["meta_info"]["finish_reason"]["type"] == "abort":  # is not trimmed: its last token may complete a stop
                text = text.removesuffix(stop)
            assert stop not in text, (stop, text)

    return check


def json_check(answer: dict) -> None:
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        value = json.loads(answer["text"])
        assert set(value) == {"ok", "kind"} and isinstance(value["ok"], bool) and value["kind"] in ("red", "green"), value
    else:
        assert answer["text"].lstrip()[:1] in ("", "{"), answer["text"]


def regex_check(answer: dict) -> None:
    text = answer["text"]
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        assert re.fullmatch(REGEX, text), text
    else:
        assert set(text) <= set("abcdx0123456789"), text


def logprob_check(body: dict) -> Callable[[dict], None]:
    def check(answer: dict) -> None:
        meta = answer["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            return
        logprobs = meta["output_token_logprobs"]
        assert [entry[1] for entry in logprobs] == answer["output_ids"], (logprobs, answer["output_ids"])
        assert all(entry[0] <= 1e-6 and math.isfinite(entry[0]) for entry in logprobs), logprobs
        if body["top_logprobs_num"]:
            assert len(meta["output_top_logprobs"]) == len(logprobs), len(meta["output_top_logprobs"])
        if body["logprob_start_len"] == 0:
            assert len(meta["input_token_logprobs"]) == len(body["input_ids"]), len(meta["input_token_logprobs"])

    return check
