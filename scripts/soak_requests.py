"""The soak's requests: random options of every kind a client may combine, each with what its answer must satisfy.

A `Case` is a body for `/generate` (or an OpenAI endpoint), how it is sent, and a check of the answer. Checks raise
AssertionError; they look at what the answer and its meta_info say, and at nothing inside the server.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Shared beginnings, so that requests find each other's prefixes in the cache.
PREFIXES = 4
GREEDY_TOKENS = 24
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


def golden_prompts(limits: Limits, seed: int) -> list[list[int]]:
    """Prompts of greedy requests, whose answers are the same whenever they are asked."""
    dice = random.Random(f"golden {seed}")
    return [[dice.randrange(limits.tokens) for _ in range(dice.randrange(6, 90))] for _ in range(6)]


def greedy_body(prompt: list[int]) -> dict:
    return {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": GREEDY_TOKENS, "ignore_eos": True}}


def make_case(dice: random.Random, limits: Limits, seed: int) -> Case:
    """A random case; `dice` decides everything."""
    kind = dice.random()
    if kind < 0.04:
        return _refused(dice, limits)
    if kind < 0.16:
        which = dice.randrange(6)
        case = Case("/generate", greedy_body(golden_prompts(limits, seed)[which]), stream=dice.random() < 0.3, greedy=which)
        case.checks = [common_check(case, limits, _control(case.body, limits))]
        return case
    if kind < 0.28:
        return _openai(dice, limits)
    return _generate(dice, limits, seed)


def _prompt(dice: random.Random, limits: Limits, seed: int, longest: int) -> list[int]:
    length = dice.choice([1, 3, 20, 60, 150, longest])
    prompt = [dice.randrange(limits.tokens) for _ in range(length)]
    if dice.random() < 0.5:  # a prefix that others have as well
        shared = random.Random(f"prefix {seed} {dice.randrange(PREFIXES)}")
        prompt = [shared.randrange(limits.tokens) for _ in range(64)] + prompt
    return prompt[:longest]


def _nsd_options(dice: random.Random, limits: Limits) -> dict:
    custom: dict[str, Any] = {}
    if dice.random() < 0.5:
        custom["nsd_threshold"] = round(min(limits.highest, dice.choice([0.0, 0.3, 0.8, 0.9, 1.0])), 3)
    bound = dice.random()
    if bound < 0.25:
        custom["nsd_epsilon"] = dice.choice([0.0, 0.01, 0.1]) if limits.epsilon is None else limits.epsilon / 2
    elif bound < 0.4:
        custom["nsd_agreement"] = dice.choice([0.5, 0.9, 1.0])
    if dice.random() < 0.2:
        custom["nsd_protect_stop"] = True
    return custom


def _sampling(dice: random.Random) -> dict:
    params: dict[str, Any] = {"temperature": dice.choice([0, 0.3, 0.7, 1.0, 1.0, 1.0, 2.0])}
    if dice.random() < 0.25:
        params["top_k"] = dice.choice([1, 5, 40])
    if dice.random() < 0.25:
        params["top_p"] = dice.choice([0.2, 0.8, 0.95])
    if dice.random() < 0.15:
        params["min_p"] = dice.choice([0.05, 0.2])
    if dice.random() < 0.15:
        params["frequency_penalty"] = dice.choice([-0.5, 0.7])
    if dice.random() < 0.15:
        params["presence_penalty"] = dice.choice([-0.5, 0.9])
    if dice.random() < 0.15:
        params["repetition_penalty"] = dice.choice([0.9, 1.3])
    if dice.random() < 0.1:
        params["logit_bias"] = {str(dice.randrange(97, 110)): dice.choice([-100, 5])}
    if dice.random() < 0.1:
        params["min_new_tokens"] = dice.choice([1, 7])
    return params


def _generate(dice: random.Random, limits: Limits, seed: int) -> Case:
    new_tokens = dice.choice([1, 2, 5, 17, 40, 90])
    params = {**_sampling(dice), "max_new_tokens": new_tokens}
    checks = []
    shape = dice.random()
    if shape < 0.12:
        params["json_schema"] = json.dumps(SCHEMA)
        checks.append(_json_check)
    elif shape < 0.2:
        params["regex"] = REGEX
        checks.append(_regex_check)
    elif shape < 0.4:
        params["stop"] = dice.choice([["e", "ab"], ["q"], ["zz", "the "]])
        checks.append(_stop_check(params["stop"]))
    elif shape < 0.7:
        params["ignore_eos"] = True
    if dice.random() < 0.7:
        params["custom_params"] = _nsd_options(dice, limits)
    params["n"] = n = dice.choice([1] * 8 + [2, 3])
    longest = max(1, min(300, limits.context - new_tokens - 8))
    body: dict[str, Any] = {"input_ids": _prompt(dice, limits, seed, longest), "sampling_params": params}
    case = Case("/generate", body, stream=n == 1 and dice.random() < 0.4, n=n, checks=checks)
    if dice.random() < 0.25:
        body |= {"return_logprob": True, "top_logprobs_num": dice.choice([0, 2]), "logprob_start_len": dice.choice([-1, -1, 0])}
        if not case.stream:
            checks.append(_logprob_check(body))
    checks.append(common_check(case, limits, _control(body, limits)))
    if n == 1 and dice.random() < 0.2:
        case.abort = dice.choice(["abort", "drop"])
    return case


def _refused(dice: random.Random, limits: Limits) -> Case:
    """Bodies that the server answers with 400, and that leave no trace."""
    body = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 1, "max_new_tokens": 8}}
    which = dice.randrange(3)
    if which == 0:
        body["sampling_params"]["custom_params"] = {"nsd_threshold": 2}
    elif which == 1:
        body["sampling_params"]["custom_params"] = {"nsd_treshold": 0.5}
    else:
        body["input_ids"] = [1] * (limits.context + 10)
    return Case("/generate", body, status=400)


def _openai(dice: random.Random, limits: Limits) -> Case:
    custom = _nsd_options(dice, limits)
    body: dict[str, Any] = {"model": "m", "max_tokens": dice.choice([1, 8, 30]), "temperature": dice.choice([0, 1.0])}
    body |= {"custom_params": custom, "return_spec_tokens_details": True}
    chat = dice.random() < 0.5
    words = " ".join(dice.choice(["red", "blue", "one", "of", "the"]) for _ in range(dice.choice([1, 12, 40])))
    body |= {"messages": [{"role": "user", "content": words}]} if chat else {"prompt": words}
    greedy = body["temperature"] == 0
    threshold = 0.0 if greedy else custom.get("nsd_threshold", limits.threshold)

    def check(answer: dict) -> None:
        details = answer["sglext"]["spec_tokens_details"]
        assert details["nsd_threshold"] == threshold, (details, threshold)
        assert 1 <= answer["usage"]["completion_tokens"] <= body["max_tokens"], answer["usage"]
        assert answer["choices"][0]["finish_reason"] in ("stop", "length"), answer["choices"]

    return Case("/v1/chat/completions" if chat else "/v1/completions", body, checks=[check])


def _control(body: dict, limits: Limits) -> tuple[float, float | None]:
    """Threshold and epsilon that the answer has to report."""
    params = body["sampling_params"]
    custom = params.get("custom_params") or {}
    greedy = params["temperature"] == 0 or params.get("top_k") == 1
    threshold = 0.0 if greedy else custom.get("nsd_threshold", limits.threshold)
    epsilon = custom.get("nsd_epsilon", limits.epsilon)
    if "nsd_agreement" in custom:
        epsilon = min(limits.epsilon or 1.0, 1.0 - custom["nsd_agreement"] ** (1.0 / params["max_new_tokens"]))
    return threshold, epsilon


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


def _stop_check(stops: list[str]) -> Callable[[dict], None]:
    def check(answer: dict) -> None:
        for stop in stops:
            assert stop not in answer["text"], (stop, answer["text"])

    return check


def _json_check(answer: dict) -> None:
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        value = json.loads(answer["text"])
        assert set(value) == {"ok", "kind"} and isinstance(value["ok"], bool) and value["kind"] in ("red", "green"), value
    else:
        assert answer["text"].lstrip()[:1] in ("", "{"), answer["text"]


def _regex_check(answer: dict) -> None:
    text = answer["text"]
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        assert re.fullmatch(REGEX, text), text
    else:
        assert set(text) <= set("abcdx0123456789"), text


def _logprob_check(body: dict) -> Callable[[dict], None]:
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
