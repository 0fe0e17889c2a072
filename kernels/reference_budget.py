"""The probability of a rescue at a node with one sampled child, before its child is drawn."""

from __future__ import annotations

from bisect import bisect_left

import torch

from nsd_sglang.kernels.reference_gates import in_nucleus


def rescue_probability(
    row: torch.Tensor,  # real [V]: p
    ids: torch.Tensor,  # int64 [C], -1 is padding
    masses: torch.Tensor,  # real [C]: p of the candidates, 0 where unusable
    surplus: torch.Tensor,  # real [C]: (q - p)+ of the candidates, 0 where a rescue is forbidden
    theta: float,
    ordered_ties: bool,
) -> float:
    """E_S = sum of the surplus over the candidates in the nucleus, at most 1.

    The nucleus is an upper set in the order of its tie rule, so its edge among the candidates is found by bisection.
    """
    p, tokens = masses.tolist(), ids.tolist()
    order = [slot for slot in range(len(tokens)) if p[slot] > 0.0 and surplus[slot] > 0.0]
    order.sort(key=lambda slot: (-p[slot], tokens[slot]))

    def outside(slot):
        return not in_nucleus(row, tokens[slot], p[slot], 0.0, theta, ordered_ties)

    return min(surplus[order[: bisect_left(order, True, key=outside)]].sum().item(), 1.0)
