"""What one request asks of NSD: the `nsd_*` keys of `sampling_params.custom_params`, and what they accept.

The server's flags are the defaults. A request may always ask for less deviation; for more only as far as the operator
allows: a higher threshold up to `--nsd-max-threshold`, no larger epsilon than `--nsd-epsilon`, and neither the
protection of stop tokens nor the scope of the server is lifted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nsd_sglang.options import SCOPES, NSDOptions, OptionError, shown

PREFIX = "nsd_"
KEYS = ("nsd_threshold", "nsd_epsilon", "nsd_agreement", "nsd_protect_stop", "nsd_scope")


@dataclass(frozen=True)
class RequestControl:
    """What is in force for one request.

    threshold: theta, 0 to 1. epsilon: total-variation budget of a position, 0 to 1; None is no budget.
    protect_stop: whether a rescue may not emit an end-of-sequence or stop token. scope: "all", or "thinking" for rescues
    inside the reasoning span alone.
    """

    threshold: float
    epsilon: float | None
    protect_stop: bool
    scope: str

    def agreement_bound(self, tokens: int, tv_bound: float) -> float:
        """A lower bound, 0 to 1, of the probability that an answer agrees with a coupled run of the exact target.

        With a budget (1 - epsilon)^tokens, which holds at every history (section 3 of the specification follows the
        sequence bound of arXiv 2610.07822). Without one max(0, 1 - tv_bound): tv_bound estimates the sum of the
        deviations, so this holds in the mean over answers, not for each of them.
        """
        if self.threshold == 0.0:
            return 1.0
        if self.epsilon is not None:
            return (1.0 - self.epsilon) ** tokens
        return max(0.0, 1.0 - tv_bound)


def default_control(options: NSDOptions) -> RequestControl:
    """The server's settings: what a request without `nsd_*` keys gets."""
    return RequestControl(options.threshold, options.epsilon, options.protect_stop, options.scope)


def epsilon_for(agreement: float, tokens: int) -> float:
    """The budget per position with which `tokens` tokens agree with an exact run with probability `agreement` or more:
    (1 - epsilon)^tokens = agreement."""
    return abs(math.expm1(math.log(agreement) / tokens))


def request_control(
    custom_params: Mapping[str, Any] | None, max_new_tokens: int | None, options: NSDOptions
) -> RequestControl:
    """The settings of a request.

    Raises OptionError with one line that names the key, the accepted values and what it got.
    """
    given = {key: value for key, value in (custom_params or {}).items() if str(key).startswith(PREFIX)}
    for key in given:
        if key not in KEYS:
            raise OptionError(f"custom_params has no key {shown(key)}; accepted nsd_ keys: {', '.join(KEYS)}")
    default = default_control(options)
    if not given:
        return default
    return RequestControl(
        threshold=_read(given, "nsd_threshold", _threshold(options), default.threshold),
        epsilon=_budget(given, max_new_tokens, options),
        protect_stop=_read(given, "nsd_protect_stop", _protect_stop(options), default.protect_stop),
        scope=_read(given, "nsd_scope", _scope(options), default.scope),
    )


def _read(given: Mapping[str, Any], key: str, parse: Callable[[Any], Any], default: Any) -> Any:
    value = given.get(key)
    if value is None:
        return default
    try:
        return parse(value)
    except OptionError as accepted:
        raise OptionError(f"custom_params.{key} accepts {accepted}, got {shown(value)}") from None


def _number(value: Any, low: float, high: float, accepted: str, open_low: bool = False) -> float:
    """JSON numbers only: true is no number, "0.9" is no number, and NaN is in no range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(accepted)
    if not low <= value <= high or (open_low and value == low):
        raise OptionError(accepted)
    return value + 0.0  # -0.0 becomes 0.0, which an answer reports


def _threshold(options: NSDOptions) -> Callable[[Any], float]:
    if options.gate != "nucleus":  # a rival rule, for side by side only, has one parameter for all
        return lambda value: _number(value, math.nan, math.nan, f"nothing on this server (--nsd-gate {options.gate})")
    highest = options.highest_threshold
    limit = "" if highest == 1.0 else " (--nsd-max-threshold)"
    return lambda value: _number(value, 0.0, highest, f"a number from 0 to {highest:g}{limit}")


def _budget(given: Mapping[str, Any], max_new_tokens: int | None, options: NSDOptions) -> float | None:
    highest = 1.0 if options.epsilon is None else options.epsilon
    limit = "" if options.epsilon is None else " (--nsd-epsilon)"
    if given.get("nsd_epsilon") is not None and given.get("nsd_agreement") is not None:
        raise OptionError("custom_params accepts nsd_epsilon or nsd_agreement, got both")
    budget = _read(
        given, "nsd_epsilon", lambda value: _number(value, 0.0, highest, f"a number from 0 to {highest:g}{limit}"), options.epsilon
    )
    agreement = _read(
        given, "nsd_agreement", lambda value: _number(value, 0.0, 1.0, "a number above 0, up to 1", open_low=True), None
    )
    if agreement is None:
        return budget
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise OptionError(
            f"custom_params.nsd_agreement needs max_new_tokens (max_tokens in the OpenAI API) of 1 or more, got {shown(max_new_tokens)}"
        )
    # A budget that the server sets is kept when the agreement alone would allow more.
    return min(highest, epsilon_for(agreement, max_new_tokens))


def _protect_stop(options: NSDOptions) -> Callable[[Any], bool]:
    def parse(value: Any) -> bool:
        if not isinstance(value, bool):
            raise OptionError("true or false")
        if options.protect_stop and not value:
            raise OptionError("only true on this server (--nsd-protect-stop)")
        return value

    return parse


def _scope(options: NSDOptions) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in SCOPES:
            raise OptionError("one of " + ", ".join(SCOPES))
        if options.scope == "thinking" and value != "thinking":
            raise OptionError("only thinking on this server (--nsd-scope)")
        if value == "thinking" and options.think_ids is None:
            raise OptionError("all only: this server knows no thinking tokens (--reasoning-parser or --nsd-think-ids)")
        return value

    return parse
