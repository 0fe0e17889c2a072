"""Triton functions over one node of a tree: its children and the two SD tests.

Vectors over children are NODE_BLOCK wide and in draw order; vectors over stored candidates are CANDIDATE_BLOCK wide.
"""

import triton
import triton.language as tl

from nsd_sglang.kernels.triton_row import mass_of

TINY = tl.constexpr(1e-30)  # see reference.TINY


@triton.jit
def _link(ptr, NODES: tl.constexpr):
    """A node index, or -1 for anything outside the tree."""
    node = tl.load(ptr)
    return tl.where((node >= 0) & (node < NODES), node, -1).to(tl.int32)


@triton.jit
def pick(values, slots, slot):
    """values[slot] as a scalar."""
    return tl.sum(tl.where(slots == slot, values, tl.zeros_like(values)), axis=0)


@triton.jit
def list_children(
    candidates_ptr,  # int64 [N]
    next_token_ptr,  # int64 [N]
    next_sibling_ptr,  # int64 [N]
    node,
    NODES: tl.constexpr,
    VOCAB: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
):
    """Children in draw order: their nodes, their tokens (-1 if outside the vocabulary or a repeat), their number."""
    slots = tl.arange(0, NODE_BLOCK)
    children = tl.full([NODE_BLOCK], -1, dtype=tl.int32)
    tokens = tl.full([NODE_BLOCK], -1, dtype=tl.int32)
    count = 0
    child = _link(next_token_ptr + node, NODES)
    while (child >= 0) & (count < NODES - 1):
        token = tl.load(candidates_ptr + child)
        token = tl.where((token >= 0) & (token < VOCAB), token, -1).to(tl.int32)
        token = tl.where(tl.max((tokens == token).to(tl.int32), axis=0) == 1, -1, token)
        children = tl.where(slots == count, child, children)
        tokens = tl.where(slots == count, token, tokens)
        count += 1
        child = _link(next_sibling_ptr + child, NODES)
    return children, tokens, count


@triton.jit
def point_mass_test(masses, slots, coin, NODE_BLOCK: tl.constexpr):
    """SD test of deterministic children: accepted rank (NODE_BLOCK if none) and probability of rejecting all."""
    # Strict, where SGLang's tree kernel has <=: a coin of 0.0 must not accept a token without mass.
    hit = (coin < tl.cumsum(masses, axis=0)) & (masses > 0.0)
    accepted = tl.min(tl.where(hit, slots, NODE_BLOCK), axis=0)
    reject_all = tl.minimum(tl.maximum(1.0 - tl.sum(masses, axis=0), 0.0), 1.0)
    return accepted, reject_all


@triton.jit
def recursive_rejection(
    row_ptr,  # float32 [V]
    ids_ptr,  # int64 [C]
    q_ptr,  # float32 [C]
    sibling_coins_ptr,  # float32 [N] or None
    coin,
    children,  # int32 [NODE_BLOCK]
    tokens,  # int32 [NODE_BLOCK]
    count,
    gated,  # 1 if the probability of rejecting all is wanted
    VOCAB: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CANDIDATE_BLOCK: tl.constexpr,
):
    """SD test of sampled children. Only the candidates of q are touched: elsewhere the residual is scale * p.

    Returns accepted rank (NODE_BLOCK if none), probability of rejecting all, its mean over the draws of a single child
    (-1 if there are more, or it cannot be tested), and the residual: ids, values, scale.
    """
    slots = tl.arange(0, NODE_BLOCK)
    lanes = tl.arange(0, CANDIDATE_BLOCK)
    ids = tl.load(ids_ptr + lanes, mask=lanes < CANDIDATES, other=-1)
    q = tl.load(q_ptr + lanes, mask=lanes < CANDIDATES, other=0.0)
    kept = (q > 0.0) & (q <= 1.0) & (ids >= 0) & (ids < VOCAB)
    ids = tl.where(kept, ids, -1).to(tl.int32)
    q = tl.where(kept, q, 0.0)
    r = mass_of(tl.load(row_ptr + ids, mask=kept, other=0.0))
    elsewhere = tl.maximum(1.0 - tl.sum(r, axis=0), 0.0)
    surplus = tl.sum(tl.maximum(q - r, 0.0), axis=0)
    mean_reject = -1.0
    scale = 1.0
    r_total = 1.0
    q_total = 1.0
    accepted = NODE_BLOCK
    reject_all = 1.0
    rank = 0
    more = 1
    while (rank < count) & (more == 1):
        token = pick(tokens, slots, rank)
        here = (ids == token) & (q > 0.0)
        testable = (token >= 0) & (tl.max(here.to(tl.int32), axis=0) == 1)
        if sibling_coins_ptr is None:
            testable = testable & (rank == 0)
        # A child that cannot be tested is skipped: the residual stays exact whatever its law was.
        if testable:
            mean_reject = tl.where(count == 1, surplus, -1.0)
            if r_total > 0.0:
                # Normalised late: a chain's residual (p - q)+ stays free of rounding.
                r = tl.div_rn(r, tl.zeros_like(r) + r_total)
                scale = tl.div_rn(scale, r_total)
                elsewhere = tl.div_rn(elsewhere, r_total)
                q = tl.div_rn(q, tl.zeros_like(q) + q_total)
                u = coin
                if sibling_coins_ptr is not None:
                    if rank > 0:
                        u = tl.load(sibling_coins_ptr + pick(children, slots, rank))
                q_here = tl.sum(tl.where(here, q, 0.0), axis=0)
                r_here = tl.sum(tl.where(here, r, 0.0), axis=0)
                # The comparison of SGLang's chain sampler: same coins, same decisions.
                if (accepted == NODE_BLOCK) & (r_here > 0.0) & (u * q_here < r_here):
                    accepted = rank
                reject_all *= 1.0 - tl.minimum(tl.div_rn(r_here, q_here), 1.0)
                r = tl.maximum(r - q, 0.0)
                q = tl.where(here, 0.0, q)
                r_total = tl.sum(r, axis=0) + elsewhere
                q_total = tl.maximum(tl.sum(q, axis=0), TINY)
                more = ((accepted == NODE_BLOCK) | ((gated == 1) & (reject_all > 0.0))).to(tl.int32)
            else:
                more = 0
        rank += 1
    return accepted, reject_all, mean_reject, ids, r, scale
