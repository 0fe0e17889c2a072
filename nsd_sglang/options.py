"""The options of NSD: flags of the server, their environment twins, and what they accept.

A flag wins over its environment twin, the twin over the default. The values travel to the scheduler processes on the
`ServerArgs` record, which SGLang pickles with its bookkeeping attributes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Callable

from nsd_sglang.kernels.gates import GATES

DRAFTERS = ("auto", "eagle", "eagle3", "nextn", "standalone")
PROPOSALS = ("topk", "sampled")
BACKENDS = ("auto", "triton", "torch")
SCOPES = ("all", "thinking")


class OptionError(ValueError):
    """A value that an option does not accept. The message is one line and names the option and what it accepts."""


def shown(value: Any) -> str:
    """A value in an error message: escaped, and never longer than a line."""
    huge = isinstance(value, int) and abs(value) >= 10**30
    text = "a very large number" if huge else ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class NSDOptions:
    """Options of one server.

    threshold: nucleus threshold theta, 0 <= theta <= 1; 0 is standard speculative decoding (arXiv 2610.07822).
    drafter: family of the draft checkpoint, one of `DRAFTERS`.
    proposals: how the draft proposes, one of `PROPOSALS`.
    candidates: C, how many of the draft's most likely tokens a sampled proposal is drawn from, 1 <= C <= 1024.
    verify_backend: implementation of the verifier, one of `BACKENDS`.
    trace: file that verify steps are recorded to (nsd_sglang/trace.py), None for none.
    trace_max_mb: size at which recording stops, megabytes (10^6 bytes), 1 to 1,000,000.
    max_threshold: the highest threshold a request may ask for, `threshold` to 1; None is `threshold`.
    epsilon: total-variation budget of a position, 0 to 1; None is no budget. A request may ask for less.
    protect_stop: a rescue never emits an end-of-sequence or stop token.
    scope: where rescues happen, one of `SCOPES`.
    think_ids: (start, end) token ids of the reasoning span; None takes them from SGLang's reasoning parser.
    report: whether answers carry what NSD did in their meta_info.
    gate: rule that decides a rescue, one of `kernels.gates.GATES`; all but "nucleus" are for side by side only.
    gate_parameter: parameter of such a rival rule, in the range of `GATES`; `threshold` is then the same number, since
        that is what the verifier takes. None for "nucleus".
    """

    threshold: float = 0.95
    drafter: str = "auto"
    proposals: str = "sampled"
    candidates: int = 64
    verify_backend: str = "auto"
    trace: str | None = None
    trace_max_mb: int = 64
    max_threshold: float | None = None
    epsilon: float | None = None
    protect_stop: bool = False
    scope: str = "all"
    think_ids: tuple[int, int] | None = None
    report: bool = True
    gate: str = "nucleus"
    gate_parameter: float | None = None

    @property
    def highest_threshold(self) -> float:
        """The highest threshold a request may ask for."""
        return self.threshold if self.max_threshold is None else self.max_threshold


def _unit_interval(text: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0.0 <= value <= 1.0:
        raise OptionError("a number from 0 to 1")
    return value


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except (TypeError, ValueError):
            value = low - 1
        if not low <= value <= high:
            raise OptionError(f"a whole number from {low} to {high}")
        return value

    return parse


def _new_file(text: str) -> str:
    """Absolute path of a file that can be written; the first to find out must be the command line, not the scheduler."""
    path = os.path.abspath(text)
    try:
        if not text:
            raise OSError("no name")
        there = os.path.exists(path)
        open(path, "ab").close()
        if not there:
            os.remove(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"a file in an existing folder that can be written to ({reason})") from None
    return path


def _switch(text: str) -> bool:
    words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if str(text).lower() not in words:
        raise OptionError("on or off")
    return words[str(text).lower()]


def _token_pair(text: str) -> tuple[int, int]:
    parts = str(text).split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts) or len({int(part) for part in parts}) != 2:
        raise OptionError("two different token ids, START,END")
    return int(parts[0]), int(parts[1])


def _any_number(text: str) -> float:
    """A number; its range depends on another option."""
    try:
        return float(text)
    except (TypeError, ValueError):
        raise OptionError("a number") from None


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if str(text).lower() not in choices:
            raise OptionError("one of " + ", ".join(choices))
        return str(text).lower()

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "threshold": _unit_interval,
    "drafter": _one_of(DRAFTERS),
    "proposals": _one_of(PROPOSALS),
    "candidates": _whole_number(1, 1024),
    "verify_backend": _one_of(BACKENDS),
    "trace": _new_file,
    "trace_max_mb": _whole_number(1, 1_000_000),
    "max_threshold": _unit_interval,
    "epsilon": _unit_interval,
    "protect_stop": _switch,
    "scope": _one_of(SCOPES),
    "think_ids": _token_pair,
    "report": _switch,
    "gate": _one_of(tuple(GATES)),
    "gate_parameter": _any_number,
}

_METAVARS = {
    "threshold": "THETA",
    "drafter": "{" + ",".join(DRAFTERS) + "}",
    "proposals": "{" + ",".join(PROPOSALS) + "}",
    "candidates": "C",
    "verify_backend": "{" + ",".join(BACKENDS) + "}",
    "trace": "FILE",
    "trace_max_mb": "MB",
    "max_threshold": "THETA",
    "epsilon": "EPS",
    "protect_stop": "{on,off}",
    "scope": "{" + ",".join(SCOPES) + "}",
    "think_ids": "START,END",
    "report": "{on,off}",
    "gate": "{" + ",".join(GATES) + "}",
    "gate_parameter": "X",
}

_HELP = {
    "threshold": "Nucleus threshold, 0 to 1. A drafted token is kept if it passes the standard test or is among the "
    "target's most likely tokens up to this cumulative mass. 0 is standard speculative decoding.",
    "drafter": "Family of the draft checkpoint. auto reads it off the checkpoint's config.json.",
    "proposals": "How the draft proposes: tokens drawn from its distribution (sampled), or its most likely tokens "
    "(topk).",
    "candidates": "Sampled proposals are drawn from this many of the draft's most likely tokens, renormalised.",
    "verify_backend": "Implementation of the verifier. auto is triton on a GPU and torch on a CPU.",
    "trace": "Record every verify step to this file, as JSON lines, for diagnostics; an existing file is replaced. "
    "Recording waits for the GPU at every step, so it slows serving down.",
    "trace_max_mb": "Recording stops when the file would grow beyond this size.",
    "max_threshold": "Highest threshold that a request may ask for (custom_params.nsd_threshold), --nsd-threshold to 1.",
    "epsilon": "Total-variation budget of a position, 0 to 1: rescues happen only as often as keeps the deviation at or "
    "below it. A request may ask for less.",
    "protect_stop": "A rescue never emits an end-of-sequence or stop token.",
    "scope": "Where rescues happen: everywhere, or only inside the reasoning span (thinking).",
    "think_ids": "Token ids that begin and end the reasoning span. Without it they are those of --reasoning-parser.",
    "report": "Whether answers carry what NSD did (meta_info.nsd_*), and the server's metrics count it.",
    "gate": "Rule that decides whether a token that the standard test rejects is kept. All but nucleus are rival rules, for "
    "side by side only.",
    "gate_parameter": "Parameter of a rival rule, for side by side only: "
    + "; ".join(f"{name} {gate.symbol}, {gate.range} ({gate.default:g})" for name, gate in GATES.items() if name != "nucleus")
    + ". 0 is standard speculative decoding.",
}

# How defaults read in --help where the value itself says little.
_DEFAULTS = {"max_threshold": "--nsd-threshold", "epsilon": "none", "think_ids": "none", "gate_parameter": "the rule's own"}


def flag(field: str) -> str:
    """`verify_backend` -> `--nsd-verify-backend`."""
    return "--nsd-" + field.replace("_", "-")


def environment_name(field: str) -> str:
    """`verify_backend` -> `NSD_VERIFY_BACKEND`."""
    return "NSD_" + field.upper()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the NSD flags to SGLang's parser. Values are checked by `from_namespace`, not by argparse, whose error
    would print SGLang's whole usage."""
    group = parser.add_argument_group("Nucleus Speculative Decoding (--speculative-algorithm NSD)")
    for field in fields(NSDOptions):
        group.add_argument(
            flag(field.name),
            default=None,
            metavar=_METAVARS[field.name],
            help=f"{_HELP[field.name]} Default {_shown_default(field)}; environment twin {environment_name(field.name)}.",
        )


def _shown_default(field: Any) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return _DEFAULTS.get(field.name, str(field.default))


def from_namespace(
    namespace: argparse.Namespace | None = None, environment: Mapping[str, str] = os.environ
) -> NSDOptions:
    """Options from parsed flags and the environment.

    Raises OptionError with one line that names the flag or variable, what it accepts and what it got.
    """
    values = {}
    for field in fields(NSDOptions):
        name, given = flag(field.name), getattr(namespace, "nsd_" + field.name, None)
        if given is None:
            name, given = environment_name(field.name), environment.get(environment_name(field.name))
        if given is None:
            continue
        try:
            values[field.name] = _PARSERS[field.name](given)
        except OptionError as accepted:
            raise OptionError(f"{name} accepts {accepted}, got {given!r}") from None
    _settle_gate(values)
    options = NSDOptions(**values)
    if options.highest_threshold < options.threshold:
        raise OptionError(
            f"{flag('max_threshold')} accepts --nsd-threshold ({options.threshold:g}) to 1, got {options.max_threshold:g}"
        )
    return options


def _settle_gate(values: dict[str, Any]) -> None:
    """Check what belongs to a gate alone, and make a rival rule's parameter the verifier's threshold."""
    gate, parameter = values.get("gate", "nucleus"), values.get("gate_parameter")
    if gate == "nucleus":
        if parameter is not None:
            raise OptionError(f"{flag('gate_parameter')} accepts nothing with --nsd-gate nucleus, which has --nsd-threshold, got {parameter:g}")
        return
    for field in ("threshold", "max_threshold", "trace"):
        if values.get(field) is not None:
            raise OptionError(f"{flag(field)} accepts only --nsd-gate nucleus, got --nsd-gate {gate}, which has --nsd-gate-parameter")
    if parameter is None:
        parameter = GATES[gate].default
    if not GATES[gate].accepts(parameter):
        raise OptionError(f"{flag('gate_parameter')} accepts {GATES[gate].range} with --nsd-gate {gate}, got {parameter:g}")
    values["threshold"] = values["gate_parameter"] = parameter
