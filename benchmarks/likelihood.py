"""Likelihood and entropy of a given answer under the exact target: teacher-forced on a server without speculation.

The answer's tokens are sent as *input* behind the prompt, with ``max_new_tokens`` 0: SGLang's ``/generate`` then returns the log
probability of each of them given what precedes it, and the most likely tokens of each position (``return_logprob``,
``logprob_start_len``, ``top_logprobs_num``; the lists as base64 arrays). Three things about these figures in SGLang 0.5.23:

- They are of the plain softmax; the request's temperature, top-k and top-p do not touch input log probabilities (tried:
  the same figures at temperature 0.5, 1 and 2). So the request's transform is applied here, to the returned distribution.
- A whole distribution is feasible but heavy (vocabulary 49152, 96 tokens: 52 MB a reply, seconds an answer). ``TOP`` entries are
  asked for, and the rest is bounded: its mass is known exactly, its tokens are at most as likely as the last listed one.
  At temperature 1 the answer's log probability is exact and only the entropy has a bound; at other temperatures the
  normaliser has one too. Every figure is the middle of its interval and carries half its width as ``..._error``.
- A prefill and a decode step round differently: with bfloat16 weights the log probability of a token can differ by tenths
  between the two; over an answer the differences cancel for the most part. All arms are scored the same way.

Order of the transform: temperature, then top-k, then top-p over what top-k left, as SGLang's speculative verification does it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsd_sglang.benchmarks.errors import BenchError

TOP = 1024
# What can be asked of a request without changing its distribution beyond the three that are modelled here.
MODELLED = ("temperature", "top_k", "top_p")
HARMLESS = ("max_new_tokens", "min_new_tokens", "ignore_eos", "stop", "stop_token_ids", "stop_regex", "n", "custom_params")
HARMLESS += ("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "sampling_seed")
NEUTRAL = {"min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}


@dataclass(frozen=True)
class Likelihood:
    """Sums over an answer's tokens, in nats. The true value lies within ``error`` of the figure.

    outside: tokens that the transformed target gives no probability at all (top-k or top-p removed them); they are not in
    ``logprob``, which would be minus infinity.
    """

    logprob: float
    logprob_error: float
    entropy: float
    entropy_error: float
    outside: int


@dataclass(frozen=True)
class Transform:
    """The request's sampling transform. top_k: None keeps all."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    @classmethod
    def of(cls, sampling_params: dict[str, Any]) -> Transform:
        """Read SGLang's ``sampling_params``.

        Raises:
            BenchError: temperature 0 (an answer has no likelihood then), or a parameter that changes the distribution in a way
                that is not modelled here.
        """
        for name, value in sampling_params.items():
            if name not in (*MODELLED, *HARMLESS) and value is not None and value != NEUTRAL.get(name):
                raise BenchError(f"the quality suite scores {', '.join(MODELLED)}; it cannot with {name} among the sampling parameters")
        temperature = float(sampling_params.get("temperature", 1.0))
        if temperature <= 0:
            raise BenchError("--temperature: the quality suite needs one above 0; at 0 every arm gives plain decoding's answer")
        top_k = int(sampling_params.get("top_k") or -1)
        return cls(temperature, top_k if top_k > 0 else None, float(sampling_params.get("top_p") or 1.0))


def score(
    ask: Callable[[dict], dict], prompt_ids: list[int], output_ids: list[int], transform: Transform, vocab_size: int, top: int = TOP
) -> Likelihood:
    """Likelihood of ``output_ids`` after ``prompt_ids`` (both token ids, neither empty).

    ask: sends a body to ``/generate`` of a server without speculation and returns the reply as a dict.
    vocab_size: of the model's logits. top: how many tokens of each position to fetch.

    Raises:
        BenchError: the reply has no log probabilities of these tokens.
    """
    top = min(max(top, transform.top_k or 0), vocab_size)
    body = {
        "input_ids": [*prompt_ids, *output_ids],
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        # The token at the start itself has no entry: one before the answer.
        "logprob_start_len": len(prompt_ids) - 1,
        "top_logprobs_num": top,
        "return_flat_raw_top_logprobs": True,
        "return_flat_raw_top_logprobs_b64": True,
    }
    chosen, listed = _read(ask(body), output_ids)
    return bounds(chosen, listed, vocab_size, transform)


def _read(reply: dict, output_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    try:
        meta = reply["meta_info"]
        chosen, ids = zip(*((logprob, token) for logprob, token, *_ in meta["input_token_logprobs"][-len(output_ids) :]))
        rows, top = meta["input_top_logprobs_shape"]
        listed = np.frombuffer(base64.b64decode(meta["input_top_logprobs_val_flat_b64"]), dtype="<f4").reshape(rows, top)
        if list(ids) != list(output_ids) or rows < len(ids):
            raise ValueError("they are of other tokens")
        return np.array(chosen, dtype=np.float64), listed[-len(ids) :].astype(np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"the server's reply has no usable log probabilities of its input: {error}") from error


def bounds(chosen: np.ndarray, listed: np.ndarray, vocab_size: int, transform: Transform) -> Likelihood:
    """The arithmetic of :func:`score`.

    Args:
        chosen: float64 [N], log probability of each token of the answer.
        listed: float64 [N, K], the K largest log probabilities of each position, descending.
        vocab_size: K or more.
    """
    low, high = np.zeros(2), np.zeros(2)
    outside = 0
    for logprob, row in zip(chosen, listed):
        row_low, row_high, inside = _position(float(logprob), row, vocab_size, transform)
        low, high = low + row_low, high + row_high
        outside += not inside
    (logprob, entropy), (logprob_error, entropy_error) = (low + high) / 2, (high - low) / 2
    return Likelihood(float(logprob), float(logprob_error), float(entropy), float(entropy_error), outside)


def _position(logprob: float, row: np.ndarray, vocab_size: int, transform: Transform) -> tuple[np.ndarray, np.ndarray, bool]:
    """Bounds of (log p of the token, entropy) at one position, float64 [2] each, and whether the token was kept."""
    power = 1 / transform.temperature
    # Relative to the most likely token, so that nothing overflows.
    logs = (row - row[0]) * power
    rest, rest_low, rest_high = vocab_size - len(row), 0.0, 0.0
    if rest:
        mass = min(max(1 - math.fsum(np.exp(row)), 0.0), rest * math.exp(row[-1]))
        rest_low, rest_high = (value * math.exp(-row[0] * power) for value in _power_sum(mass, rest, math.exp(row[-1]), power))
    if transform.top_k and transform.top_k <= len(logs):
        logs, rest, rest_low, rest_high = logs[: transform.top_k], 0, 0.0, 0.0
    cut = rest == 0
    if transform.top_p < 1:
        weights = np.exp(logs)
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]]) / (weights.sum() + (rest_low + rest_high) / 2)
        kept = int((before <= transform.top_p).sum())
        cut = cut or kept < len(logs)
        # Where the nucleus is wider than the list, any part of the rest may belong to it.
        logs, rest_low, rest_high = logs[:kept], 0.0, 0.0 if cut else rest_high
    head = math.fsum(np.exp(logs))
    own = (logprob - row[0]) * power
    # The list is float32: a token at its end must not fall out by rounding.
    inside = not cut or len(logs) == vocab_size or own >= logs[-1] - 1e-5
    within = math.fsum(-np.exp(logs - math.log(head)) * (logs - math.log(head)))
    last = float(logs[-1])
    entropy_low = _entropy(within, head, rest_low, math.log(rest_low) - last if rest_low > 0 else 0.0)
    entropy_high = _entropy(within, head, rest_high, math.log(rest) if rest else 0.0)
    low = np.array([own - math.log(head + rest_high) if inside else 0.0, entropy_low])
    high = np.array([own - math.log(head + rest_low) if inside else 0.0, entropy_high])
    return low, high, inside


def _power_sum(mass: float, count: int, most: float, power: float) -> tuple[float, float]:
    """Bounds of the sum of p**power over ``count`` probabilities with sum ``mass``, none above ``most``.

    x**power is convex from power 1 on and concave below: equal shares are one extreme, as many as possible at ``most`` the other.
    """
    if mass <= 0 or most <= 0:
        return 0.0, 0.0
    equal = count * (mass / count) ** power
    whole = min(math.floor(mass / most), count)
    uneven = whole * most**power + max(mass - whole * most, 0.0) ** power
    return min(equal, uneven), max(equal, uneven)


def _entropy(within: float, head: float, rest: float, rest_entropy: float) -> float:
    """Entropy of a mixture of two disjoint parts with weights ``head`` and ``rest`` and entropies ``within``, ``rest_entropy``."""
    if rest <= 0:
        return within
    share = rest / (head + rest)
    split = -share * math.log(share) - (1 - share) * math.log1p(-share)
    return split + (1 - share) * within + share * max(rest_entropy, 0.0)
