"""The gate in Triton: one small function a rule, and the loop over the children that asks it.

A rule gets a token with p(token) > 0 and gives 1 or 0. `gates.py` says what each rule is, `reference_gates.py` says the
same in torch. The rule is a compile-time constant: a kernel holds one.
"""

import triton
import triton.language as tl

from nsd_sglang.kernels.triton_node import pick
from nsd_sglang.kernels.triton_row import mass_of

CERTAIN_MARGIN = tl.constexpr(1e-5)  # see reference_gates.CERTAIN_MARGIN


@triton.jit
def gate(
    row_ptr,  # float32 [V]
    protected_ptr,  # int64 [P] or None
    ids_ptr,  # int64 [C] or None (point-mass proposals)
    q_ptr,  # float32 [C] or None
    tokens,  # int32 [NODE_BLOCK]
    masses,  # float32 [NODE_BLOCK]
    count,
    parameter,  # > 0
    num_protected,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    NODE_BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CANDIDATE_BLOCK: tl.constexpr,
    ORDERED_TIES: tl.constexpr,
    GATE: tl.constexpr,
):
    """Rank of the first child that the rule keeps, NODE_BLOCK if it keeps none."""
    slots = tl.arange(0, NODE_BLOCK)
    if protected_ptr is not None:
        for i in range(num_protected):
            masses = tl.where(tokens == tl.load(protected_ptr + i), 0.0, masses)
    accepted = NODE_BLOCK
    # A nucleus is an upper set: a child below one found outside is outside too, and costs no pass over the row. So are
    # the tokens that the other rules on p alone keep.
    outside_mass = 0.0
    outside_token = 0
    rank = 0
    while (rank < count) & (accepted == NODE_BLOCK):
        mass = pick(masses, slots, rank)
        token = pick(tokens, slots, rank)
        if (mass > outside_mass) | ((mass > 0.0) & (mass == outside_mass) & (token < outside_token)):
            if GATE == "nucleus":
                kept = in_nucleus(row_ptr, token, mass, parameter, VOCAB, BLOCK, ORDERED_TIES)
            elif GATE == "greedy-margin":
                kept = within_margin(row_ptr, mass, parameter, VOCAB, BLOCK)
            elif GATE == "greedy-ratio":
                kept = within_ratio(row_ptr, mass, parameter, VOCAB, BLOCK)
            elif GATE == "top-m":
                kept = in_top(row_ptr, token, mass, parameter, VOCAB, BLOCK, ORDERED_TIES)
            elif GATE == "typical":
                kept = is_typical(row_ptr, mass, parameter, VOCAB, BLOCK)
            else:
                q = recorded(ids_ptr, q_ptr, token, CANDIDATES, CANDIDATE_BLOCK)
                if GATE == "additive":
                    kept = within_addend(mass, q, parameter)
                else:
                    tl.static_assert(GATE == "multiplicative")
                    kept = within_factor(mass, q, parameter)
            if kept == 1:
                accepted = rank
            # A rule that compares with q says nothing about other children.
            if (GATE != "additive") and (GATE != "multiplicative"):
                outside_mass = mass
                outside_token = token
        rank += 1
    return accepted


@triton.jit
def in_nucleus(
    row_ptr,  # float32 [V]
    token,  # scalar id in [0, V)
    mass,  # scalar p(token), > 0
    theta,  # scalar threshold, > 0
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDERED_TIES: tl.constexpr,
):
    """1 if `token` is in the nucleus of the row, else 0. Reads the row only if p(token) does not settle it."""
    inside = 1
    if (theta < 1.0) & (mass <= 1.0 - theta + CERTAIN_MARGIN):
        above = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, VOCAB, BLOCK):
            offsets = start + tl.arange(0, BLOCK)
            p = tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=0.0)
            counts = p > mass
            if ORDERED_TIES:
                counts = counts | ((p == mass) & (offsets < token))
            above += tl.where(counts, p, 0.0)
        inside = (tl.sum(above, axis=0) < theta).to(tl.int32)
    return inside


@triton.jit
def within_margin(row_ptr, mass, margin, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """p(x) >= p_max - m."""
    return (mass >= _peak(row_ptr, VOCAB, BLOCK) - margin).to(tl.int32)


@triton.jit
def within_ratio(row_ptr, mass, factor, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """c * p(x) >= p_max."""
    return (factor * mass >= _peak(row_ptr, VOCAB, BLOCK)).to(tl.int32)


@triton.jit
def in_top(row_ptr, token, mass, size, VOCAB: tl.constexpr, BLOCK: tl.constexpr, ORDERED_TIES: tl.constexpr):
    """Fewer than m tokens above x; with ordered ties those as probable with a smaller id are above it too."""
    above = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, VOCAB, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        p = mass_of(tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=0.0))
        counts = p > mass
        if ORDERED_TIES:
            counts = counts | ((p == mass) & (offsets < token))
        above += counts.to(tl.int32)
    return (tl.sum(above, axis=0) < size).to(tl.int32)


@triton.jit
def is_typical(row_ptr, mass, delta, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """p(x) > min(delta^2, delta * exp(-H(p)))."""
    entropy = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, VOCAB, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        p = mass_of(tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=0.0))
        entropy -= p * tl.log(tl.where(p > 0.0, p, 1.0))
    level = tl.minimum(delta * delta, delta * tl.exp(-tl.sum(entropy, axis=0)))
    return (mass > level).to(tl.int32)


@triton.jit
def within_addend(mass, q, addend):
    """p(x) >= q(x) - a, for a recorded q(x)."""
    return ((q > 0.0) & (mass >= q - addend)).to(tl.int32)


@triton.jit
def within_factor(mass, q, factor):
    """c * p(x) >= q(x), for a recorded q(x)."""
    return ((q > 0.0) & (factor * mass >= q)).to(tl.int32)


@triton.jit
def recorded(ids_ptr, q_ptr, token, CANDIDATES: tl.constexpr, CANDIDATE_BLOCK: tl.constexpr):
    """q(token): 1 for point-mass proposals, 0 if no usable probability is stored for it."""
    if ids_ptr is None:
        q_token = 1.0
    else:
        lanes = tl.arange(0, CANDIDATE_BLOCK)
        ids = tl.load(ids_ptr + lanes, mask=lanes < CANDIDATES, other=-1)
        q = tl.load(q_ptr + lanes, mask=lanes < CANDIDATES, other=0.0)
        q_token = tl.sum(tl.where((ids == token) & (q > 0.0) & (q <= 1.0), q, 0.0), axis=0)
    return q_token


@triton.jit
def _peak(row_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """p_max."""
    peak = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, VOCAB, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, mass_of(tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=0.0)))
    return tl.max(peak, axis=0)
