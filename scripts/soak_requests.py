"""The soak's requests: random options of every kind a client may combine, each with what its answer must satisfy.

A `Case` is a body for `/generate` (or an OpenAI endpoint), how it is sent, and the checks of its answer.
"""

from __future__ import annotations

import json
import random
from typing import Any

from soak_answers import REGEX, SCHEMA, Case, Limits, common_check, json_check, logprob_check, regex_check, stop_check

# Shared beginnings, so that requests find each other's prefixes in the cache.
PREFIXES = 4
GREEDY_TOKENS = 24


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
    return params


def _generate(dice: random.Random, limits: Limits, seed: int) -> Case:
    new_tokens = dice.choice([1, 2, 5, 17, 40, 90])
    params = {**_sampling(dice), "max_new_tokens": new_tokens}
    checks = []
    shape = dice.random()
    if shape < 0.12:
        params["json_schema"] = json.dumps(SCHEMA)
        checks.append(json_check)
    elif shape < 0.2:
        params["regex"] = REGEX
        checks.append(regex_check)
    elif shape < 0.4:
        params["stop"] = dice.choice([["e", "ab"], ["q"], ["zz", "the "]])
        checks.append(stop_check(params["stop"]))
    elif shape < 0.7:
        params["ignore_eos"] = True
    else:
        params["min_new_tokens"] = min(new_tokens, dice.choice([0, 0, 1, 7]))
    if shape >= 0.2 and dice.random() < 0.15:  # where a grammar may not need the token
        params["logit_bias"] = {str(dice.randrange(97, 110)): dice.choice([-100, 5])}
    if dice.random() < 0.7:
        params["custom_params"] = _nsd_options(dice, limits)
    params["n"] = n = dice.choice([1] * 8 + [2, 3])
    longest = max(1, min(300, limits.context - new_tokens - 8))
    body: dict[str, Any] = {"input_ids": _prompt(dice, limits, seed, longest), "sampling_params": params}
    case = Case("/generate", body, stream=n == 1 and dice.random() < 0.4, n=n, checks=checks)
    if dice.random() < 0.25:
        body |= {"return_logprob": True, "top_logprobs_num": dice.choice([0, 2]), "logprob_start_len": dice.choice([-1, -1, 0])}
        if not case.stream:
            checks.append(logprob_check(body))
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
        if body["max_tokens"] > 1:  # without a verify step SGLang has no details to report
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
