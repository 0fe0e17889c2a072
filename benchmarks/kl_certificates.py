"""KL certificates: how close to the target a draft must be so that an acceptance rule cannot reject its likeliest token.

Setting and name are those of arXiv 2606.30265 (A. Sharma, "When Is a Draft Accepted?"): the draft proposes the argmax of q, a
rule looks at that token alone, and the certificate of a position is the infimum of KL(p || q) over every q whose argmax the
rule rejects (ties in q against us). A draft with a smaller KL cannot be rejected there; a larger one may or may not. It is a
statement about the rule and the target's row, not about output quality, and not about sampled drafts or the SD test.
The paper covers strict greedy, additive and multiplicative slack (our greedy-margin, greedy-ratio), top-m and
entropy-thresholded rules; the formulas below were derived here, from its definition of the certificate, and the two rules
that look at q, the nucleus and the other direction KL(q || p) (which stays finite for a draft cut to a few candidates) are
ours.

Derivation. Fix the rejected token b. Minimise KL over q with q(b) >= q(y) for all y and q(b) >= f (f = 0 for rules on p alone,
p(b) + a for "additive", c p(b) for "multiplicative"). The problem is convex. By its KKT conditions q(y) = min(s, mu p(y)) for
y != b, with s = q(b): the tokens G above the level are pooled with b, the others keep the shape of p. Without f, mu and s
follow from the pooled tokens: for KL(p || q), mu = 1 and s is the mean of p over G; for KL(q || p), s = g / Z, mu = 1 / Z with
g the geometric mean of p over G, Z the mass of q before normalisation, and the minimum is -log Z. Tokens join G in order of p
while they are above its mean (pool adjacent violators). The minimum is convex in s, so with f the best s is
max(f, s without f). Among the tokens rejected by a rule on p alone, the likeliest b is the cheapest: exchanging q(b) with the
value at a likelier rejected token lowers the KL by (p(b') - p(b)) log(q(b) / q(b')) >= 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from nsd_sglang.kernels.gates import GATES

DIRECTIONS = ("p||q", "q||p")


def minimal_kl(gate: str, parameter: float, direction: str = "p||q") -> float:
    """The smallest certificate (nats) of any row without zeros, whatever the vocabulary: with a smaller KL the rule can
    reject no draft at all. Infinite if the rule never rejects.

    0 for all rules but two. A nucleus, top-m, typical, ratio or factor rule rejects a token at vanishing KL in rows that are
    nearly flat over many tokens; only their certificates of a given row (`certificate`) say something. A margin m needs
    p_max - p(b) > m and costs least when the two tokens share all mass: log 2 - h((1 + m) / 2) with h the binary entropy
    (the bound for strict greedy acceptance of a row with margin m as well), or -log(1 - m^2) / 2 for KL(q || p). A slack a
    below q costs the least divergence of two coins a apart, min over x of x log(x / (x + a)) + (1 - x) log((1 - x) /
    (1 - x - a)), in either direction (x and 1 - x - a change places); at least 2 a^2, by Pinsker's inequality.
    Raises ValueError for an unknown gate or direction or a parameter outside the gate's range.
    """
    _check(gate, parameter, direction)
    if gate == "greedy-margin" and parameter > 0:
        if parameter >= 1.0:
            return math.inf
        high, low = (1 + parameter) / 2, (1 - parameter) / 2
        if direction == "p||q":
            return math.log(2) + high * math.log(high) + low * math.log(low)
        return -math.log(4 * high * low) / 2
    if gate == "additive" and parameter > 0:
        return math.inf if parameter >= 1.0 else _closest_coins(parameter)
    return math.inf if gate == "nucleus" and parameter >= 1.0 else 0.0


def certificate(gate: str, parameter: float, rows: torch.Tensor, direction: str = "p||q") -> torch.Tensor:
    """Certificates of rows of p, nats, real [...]; infinite where the rule rejects nothing.

    rows: real [..., V], each a distribution. A token with p = 0 is rejected by every rule; with a rule that was switched off
    (parameter 0) every token is. The two rules on q cost V times as much. Raises ValueError as `minimal_kl`.
    """
    _check(gate, parameter, direction)
    if rows.dim() > 1:
        if not GATES[gate].upper:
            flat = [certificate(gate, parameter, row, direction) for row in rows.reshape(-1, rows.shape[-1])]
            return torch.stack(flat).reshape(rows.shape[:-1])
    p = rows.double().sort(dim=-1, descending=True).values
    if GATES[gate].upper:
        kept = _kept(gate, parameter, p).sum(-1, keepdim=True)  # a prefix of the order
        b = p.gather(-1, kept.clamp(max=p.shape[-1] - 1))
        found = _pooled(p, b, torch.zeros_like(b), direction)
        return torch.where(kept < p.shape[-1], found, math.inf).squeeze(-1).to(rows.dtype)
    b = p.unique().unsqueeze(-1)
    floor = torch.zeros_like(b) if parameter == 0 else b + parameter if gate == "additive" else b * parameter
    found = _pooled(p.expand(len(b), -1), b, floor, direction)
    return torch.where(floor <= 1.0, found, math.inf).min().to(rows.dtype)


def certificates(
    p_row: torch.Tensor,
    q_row: torch.Tensor | None = None,
    parameters: dict[str, float] | None = None,
    direction: str = "p||q",
) -> dict[str, Any]:
    """The diagnostic of one position: certificates of every rule, and whether the draft at hand is certified.

    p_row: real [V]. q_row: real [V], the draft's law, or None. parameters: {gate: parameter}, default the gates' own.
    Returns {"kl": float or None, "gates": {gate: {"certificate": nats, "certified": bool or None}}}.
    """
    kl = None
    if q_row is not None:
        kl = divergence(p_row, q_row, direction)
    found = {}
    for gate, parameter in (parameters or {name: gate.default for name, gate in GATES.items()}).items():
        smallest = certificate(gate, parameter, p_row, direction).item()
        found[gate] = {"certificate": smallest, "certified": None if kl is None else kl < smallest}
    return {"kl": kl, "gates": found}


def divergence(p: torch.Tensor, q: torch.Tensor, direction: str = "p||q") -> float:
    """KL(p || q) or KL(q || p) in nats; infinite where the first has mass that the second lacks."""
    first, second = (p.double(), q.double()) if direction == "p||q" else (q.double(), p.double())
    return (torch.xlogy(first, first) - torch.xlogy(first, second)).sum().item()


def _check(gate: str, parameter: float, direction: str) -> None:
    if gate not in GATES:
        raise ValueError(f"gate: expected one of {', '.join(GATES)}, got {gate!r}")
    if not GATES[gate].accepts(parameter):
        raise ValueError(f"parameter of {gate}: expected {GATES[gate].range}, got {parameter!r}")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction: expected one of {', '.join(DIRECTIONS)}, got {direction!r}")


def _closest_coins(apart: float) -> float:
    """min over x of the divergence of a coin x from a coin x + apart, convex in x: ternary search."""

    def kl(x):
        return x * math.log(x / (x + apart)) + (1 - x) * math.log((1 - x) / (1 - x - apart))

    low, high = 0.0, 1 - apart
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if kl(left) < kl(right) else (left, high)
    return kl((low + high) / 2)


def _kept(gate: str, parameter: float, p: torch.Tensor) -> torch.Tensor:
    """Which tokens a rule on p keeps, bool [..., V], for rows in descending order."""
    if parameter == 0:
        return torch.zeros_like(p, dtype=torch.bool)
    first = torch.ones_like(p, dtype=torch.bool)
    first[..., 1:] = p[..., 1:] < p[..., :-1]  # tied tokens share what is above the first of them
    places = torch.arange(p.shape[-1], device=p.device).expand_as(p)
    if gate == "nucleus":
        kept = torch.where(first, p.cumsum(-1) - p, 0).cummax(-1).values < parameter
        kept = kept | (parameter >= 1.0)
    elif gate == "top-m":
        kept = torch.where(first, places, 0).cummax(-1).values < parameter
    elif gate == "greedy-margin":
        kept = p >= p[..., :1] - parameter
    elif gate == "greedy-ratio":
        kept = parameter * p >= p[..., :1]
    else:
        level = parameter * torch.exp(torch.xlogy(p, p).sum(-1, keepdim=True))
        kept = p > level.clamp(max=parameter**2)
    return kept & (p > 0)


def _pooled(p: torch.Tensor, b: torch.Tensor, floor: torch.Tensor, direction: str) -> torch.Tensor:
    """The minimum of the module docstring. p [..., V] in descending order; b, floor and the result [..., 1]."""
    forward = direction == "p||q"
    level, target = (p, b) if forward else (p.log(), b.log())
    sums = _before(level)  # of the k likeliest tokens, k = 0 ... V - 1
    count = torch.arange(1, p.shape[-1] + 1, dtype=p.dtype, device=p.device)
    # Token k + 1 joins while it is above the mean of b and the k before it; the excess falls with k. Where p is 0 and
    # its logarithm -inf, nothing joins.
    k = (torch.nan_to_num(count * level - sums, nan=-math.inf) > target).sum(-1, keepdim=True)
    mean = (_at(sums, level, k) + target) / (k + 1)
    mass, logs = _before(p), _before(torch.xlogy(p, p) if forward else p.log())
    s = mean if forward else mean.exp() / (1 - _at(mass, p, k) - b + (k + 1) * mean.exp())
    raised = floor > s
    s = torch.where(raised, floor, s)
    if raised.any():  # a higher level pools other tokens: fill up to it again
        k = torch.where(raised, 0, k)
        while True:
            mu = _mu(s, k, mass, p, b)
            more = raised & (k < p.shape[-1]) & (_at(p, p, k, gather=True) * mu > s * (1 + 1e-12)) & (s * (k + 2) <= 1)
            if not more.any():
                break
            k = k + more
    mu, rest = _mu(s, k, mass, p, b), (1 - _at(mass, p, k) - b).clamp(min=0)
    inside = _at(mass, p, k) + b
    if forward:
        found = _at(logs, torch.xlogy(p, p), k) + torch.xlogy(b, b) - torch.xlogy(inside, s)
        return (found - torch.xlogy(rest, mu)).clamp(min=0)
    found = (k + 1) * torch.xlogy(s, s) - s * (_at(logs, p.log(), k) + b.log()) + rest * torch.xlogy(mu, mu)
    return torch.where(b > 0, found, math.inf).clamp(min=0)


def _mu(s, k, mass, p, b):
    """Factor of p outside the pool; 1 where nothing is outside."""
    rest = 1 - _at(mass, p, k) - b
    return torch.where(rest > 1e-14, (1 - s * (k + 1)).clamp(min=0) / rest.clamp(min=1e-300), 1.0)


def _before(values):
    """Sum of the entries before each."""
    return values.cumsum(-1).roll(1, -1).index_fill(-1, torch.zeros(1, dtype=torch.int64, device=values.device), 0.0)


def _at(before, values, k, gather=False):
    """Sum of the first k entries (k up to V), or with `gather` entry k itself."""
    last = k.clamp(max=values.shape[-1] - 1)
    if gather:
        return values.gather(-1, last)
    return torch.where(k > last, before.gather(-1, last) + values.gather(-1, last), before.gather(-1, last))
