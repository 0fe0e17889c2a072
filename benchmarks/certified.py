"""How often a draft is close enough to the target that a relaxed rule cannot reject its likeliest token.

`kl_certificates` says how small KL(q || p) has to be for that, of a row p and of any row at all; a trace has KL(q || p) and
the head of p of every position with a recorded law. All rules are taken at their default parameters.

The rules on p alone reject everything but some of the most likely tokens, and their certificate depends on those and on
the likeliest one that is rejected, so the head of p gives it exactly; where that token is beyond the recorded head the
position counts as not certified. For the two rules that compare with q (additive, multiplicative) the certificate of any
row stands in, which is a lower bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from nsd_sglang.benchmarks.kl_certificates import certificate, minimal_kl
from nsd_sglang.kernels.gates import GATES

# The direction that stays finite for a draft cut to its likeliest tokens.
DIRECTION = "q||p"


class Law(NamedTuple):
    """A position with a recorded law. kl: KL(q || p) in nats, None where infinite. top: largest entries of p, descending.
    entropy: of p, nats."""

    kl: float | None
    top: list[float]
    entropy: float


def certified(laws: list[Law]) -> dict[str, dict[str, float | None]]:
    """For each rule: `any_row_nats`, its certificate for every row (None: it never rejects); `certified`, the share of
    positions whose KL(q || p) is below their certificate; `beyond_head`, the share whose certificate the trace does not
    give (0 for rules on q). Empty without positions."""
    if not laws:
        return {}
    figures = {}
    for name, gate in GATES.items():
        anywhere = minimal_kl(name, gate.default, DIRECTION)
        each = [_certificate(name, gate.default, law) if gate.upper else anywhere for law in laws]
        below = sum(law.kl is not None and limit is not None and law.kl < limit for law, limit in zip(laws, each))
        figures[f"{name} {gate.symbol}={gate.default:g}"] = {
            "any_row_nats": anywhere if math.isfinite(anywhere) else None,
            "certified": below / len(laws),
            "beyond_head": each.count(None) / len(laws),
        }
    return figures


def _certificate(name: str, parameter: float, law: Law) -> float | None:
    """Of the position's row; None if the rule keeps the whole recorded head."""
    head = torch.tensor(law.top, dtype=torch.float64)
    if name == "typical":
        # Its level needs the entropy of the whole row; from the recorded one, as the margin that keeps the same tokens.
        level = min(parameter**2, parameter * math.exp(-law.entropy))
        name, parameter = "greedy-margin", max(law.top[0] - level, 0.0)
    found = certificate(name, parameter, head, DIRECTION).item()
    return found if math.isfinite(found) else None
