"""The gate's rules in plain torch, in the dtype of the row; `gates.py` says what each is.

A rule gets the row of p (any float dtype, [V]), the token, p(token) > 0, q(token) (0 if none is recorded), the parameter
(> 0) and the tie rule, and says whether the token is kept.
"""

from __future__ import annotations

import math

import torch

# mass_above(x) <= 1 - p(x), so p(x) > 1 - theta puts x in the nucleus without a pass over the row. The margin covers
# the rounding of a float32 row sum.
CERTAIN_MARGIN = 1e-5


def in_nucleus(row, token, mass, q, theta, ordered_ties) -> bool:
    if theta >= 1.0 or mass > 1.0 - theta + CERTAIN_MARGIN:
        return True
    above = torch.where(row > mass, row, 0).sum()
    if ordered_ties:
        above = above + (row[:token] == mass).sum() * mass
    return bool(above < theta)


def within_margin(row, token, mass, q, margin, ordered_ties) -> bool:
    return bool(row[token] >= usable(row).max() - margin)


def within_ratio(row, token, mass, q, factor, ordered_ties) -> bool:
    return bool(factor * row[token] >= usable(row).max())


def within_addend(row, token, mass, q, addend, ordered_ties) -> bool:
    return bool(q > 0 and row[token] >= row.new_tensor(q) - addend)


def within_factor(row, token, mass, q, factor, ordered_ties) -> bool:
    return bool(q > 0 and factor * row[token] >= q)


def in_top(row, token, mass, q, size, ordered_ties) -> bool:
    row = usable(row)
    above = (row > mass).sum()
    if ordered_ties:
        above = above + (row[:token] == mass).sum()
    return bool(above < size)


def is_typical(row, token, mass, q, delta, ordered_ties) -> bool:
    row = usable(row)
    entropy = -torch.xlogy(row, row).sum()
    return bool(mass > torch.clamp(delta * torch.exp(-entropy), max=delta * delta))


def usable(row):
    """p where it is a usable probability, else 0 (negative, NaN, infinite)."""
    return torch.where((row > 0) & (row < math.inf), row, 0)


RULES = {
    "nucleus": in_nucleus,
    "greedy-margin": within_margin,
    "greedy-ratio": within_ratio,
    "additive": within_addend,
    "multiplicative": within_factor,
    "top-m": in_top,
    "typical": is_typical,
}
