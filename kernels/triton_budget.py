"""The budget of a node with one sampled child in Triton: a rescue there happens with probability min(1, epsilon / E_S).

`reference_budget.py` computes E_S; here it is only told which side of the budget it lies on, which takes fewer passes over
the row: none where the candidates known to be in the nucleus with the child exceed the budget already, and one more
than the gate's own for each time that what is left open still matters.
"""

import triton
import triton.language as tl

from nsd_sglang.kernels.triton_gates import in_nucleus
from nsd_sglang.kernels.triton_row import mass_of


@triton.jit
def rescue_within_history(
    row_ptr,  # float32 [V]
    ids_ptr,  # int64 [C]
    q_ptr,  # float32 [C]
    protected_ptr,  # int64 [P] or None
    child,  # scalar: token of the child, one of the candidates
    coin,  # scalar in [0, 1)
    epsilon,  # scalar >= 0
    theta,  # scalar > 0
    num_protected,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CANDIDATE_BLOCK: tl.constexpr,
    ORDERED_TIES: tl.constexpr,
):
    """1 if the child may be rescued, is in the nucleus, and coin * E_S < epsilon; else 0."""
    lanes = tl.arange(0, CANDIDATE_BLOCK)
    ids = tl.load(ids_ptr + lanes, mask=lanes < CANDIDATES, other=-1)
    q = tl.load(q_ptr + lanes, mask=lanes < CANDIDATES, other=0.0)
    kept = (q > 0.0) & (q <= 1.0) & (ids >= 0) & (ids < VOCAB)
    if protected_ptr is not None:
        for i in range(num_protected):
            kept = kept & (ids != tl.load(protected_ptr + i))
    ids = tl.where(kept, ids, -1).to(tl.int32)
    p = mass_of(tl.load(row_ptr + ids, mask=kept, other=0.0))
    mass = tl.sum(tl.where(ids == child, p, 0.0), axis=0)  # 0 if the child may not be rescued
    # A token without mass is in no nucleus.
    open_surplus = tl.where(p > 0.0, tl.maximum(q - p, 0.0), 0.0)

    # If the child is inside, so is all that ranks above it.
    above = _at_or_above(p, ids, mass, child, ORDERED_TIES)
    inside_surplus = tl.sum(tl.where(above, open_surplus, 0.0), axis=0)
    open_surplus = tl.where(above, 0.0, open_surplus)
    rescue = ((mass > 0.0) & _affords(coin, inside_surplus, epsilon)).to(tl.int32)
    if rescue == 1:
        rescue = in_nucleus(row_ptr, child, mass, theta, VOCAB, BLOCK, ORDERED_TIES)
        left = tl.sum(open_surplus, axis=0) * rescue
        while (left > 0.0) & _affords(coin, inside_surplus, epsilon) & ~_affords(coin, inside_surplus + left, epsilon):
            # The candidate that halves the open surplus in storage order: close to p's order, and it costs no sort.
            sums = tl.cumsum(open_surplus, axis=0)
            half = (open_surplus > 0.0) & (2.0 * sums >= tl.max(sums, axis=0))
            lane = tl.min(tl.where(half, lanes, CANDIDATE_BLOCK), axis=0)
            pivot = tl.sum(tl.where(lanes == lane, ids, 0), axis=0)
            pivot_mass = tl.sum(tl.where(lanes == lane, p, 0.0), axis=0)
            if in_nucleus(row_ptr, pivot, pivot_mass, theta, VOCAB, BLOCK, ORDERED_TIES) == 1:
                settled = _at_or_above(p, ids, pivot_mass, pivot, ORDERED_TIES)
                inside_surplus += tl.sum(tl.where(settled, open_surplus, 0.0), axis=0)
            else:
                settled = (lanes == lane) | ~_at_or_above(p, ids, pivot_mass, pivot, ORDERED_TIES)
            open_surplus = tl.where(settled, 0.0, open_surplus)
            left = tl.sum(open_surplus, axis=0)
        rescue = rescue & _affords(coin, inside_surplus, epsilon).to(tl.int32)
    return rescue


@triton.jit
def _at_or_above(p, ids, mass, token, ORDERED_TIES: tl.constexpr):
    """Candidates that are in the nucleus if `token` is, itself among them."""
    if ORDERED_TIES:
        above = (p > mass) | ((p == mass) & (ids <= token))
    else:
        above = p >= mass
    return above


@triton.jit
def _affords(coin, probability, epsilon):
    """coin < min(1, epsilon / probability), without the division by a probability that may be 0."""
    return coin * tl.minimum(probability, 1.0) < epsilon
