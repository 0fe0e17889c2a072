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

DRAFTERS = ("auto", "eagle", "eagle3", "nextn", "standalone")
PROPOSALS = ("topk", "sampled")
BACKENDS = ("auto", "triton", "torch")


class OptionError(ValueError):
    """A value that an option does not accept. The message is one line and names the option and what it accepts."""


@dataclass(frozen=True)
class NSDOptions:
    """Options of one server.

    threshold: nucleus threshold theta, 0 <= theta <= 1; 0 is standard speculative decoding (arXiv 2610.07822).
    drafter: family of the draft checkpoint, one of `DRAFTERS`.
    proposals: how the draft proposes, one of `PROPOSALS`.
    candidates: C, how many of the draft's most likely tokens a sampled proposal is drawn from, 1 <= C <= 1024.
    verify_backend: implementation of the verifier, one of `BACKENDS`.
    """

    threshold: float = 0.95
    drafter: str = "auto"
    proposals: str = "sampled"
    candidates: int = 64
    verify_backend: str = "auto"


def _unit_interval(text: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0.0 <= value <= 1.0:
        raise OptionError("a number from 0 to 1")
    return value


def _candidate_count(text: str) -> int:
    try:
        value = int(text)
    except (TypeError, ValueError):
        value = 0
    if not 1 <= value <= 1024:
        raise OptionError("a whole number from 1 to 1024")
    return value


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
    "candidates": _candidate_count,
    "verify_backend": _one_of(BACKENDS),
}

_METAVARS = {
    "threshold": "THETA",
    "drafter": "{" + ",".join(DRAFTERS) + "}",
    "proposals": "{" + ",".join(PROPOSALS) + "}",
    "candidates": "C",
    "verify_backend": "{" + ",".join(BACKENDS) + "}",
}

_HELP = {
    "threshold": "Nucleus threshold, 0 to 1. A drafted token is kept if it passes the standard test or is among the "
    "target's most likely tokens up to this cumulative mass. 0 is standard speculative decoding.",
    "drafter": "Family of the draft checkpoint. auto reads it off the checkpoint's config.json.",
    "proposals": "How the draft proposes: tokens drawn from its distribution (sampled), or its most likely tokens "
    "(topk).",
    "candidates": "Sampled proposals are drawn from this many of the draft's most likely tokens, renormalised.",
    "verify_backend": "Implementation of the verifier. auto is triton on a GPU and torch on a CPU.",
}


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
            help=f"{_HELP[field.name]} Default {field.default}; environment twin {environment_name(field.name)}.",
        )


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
    return NSDOptions(**values)
