"""Triton functions over one row of the vocabulary: usable probabilities and the inverse-CDF draw.

A row is read in blocks of BLOCK entries, without a sort; the draw reads the row once plus one block.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def mass_of(p):
    """p where it is a usable probability, else 0 (negative, NaN, infinite)."""
    return tl.where((p > 0.0) & (p < INFINITY), p, 0.0)


@triton.jit
def draw_token(
    row_ptr,  # float32 [V]
    ids,  # int32 [W], tokens whose value is altered; -1 is padding
    altered,  # float32 [W], their values, >= 0
    scale,  # scalar factor of p at every other token
    coin,  # scalar in [0, 1)
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,  # power of two, NUM_BLOCKS * BLOCK >= VOCAB
):
    """Smallest token whose cumulative value exceeds coin * total; p itself if the values have no mass; the argmax of
    the finite entries if the row is unusable."""
    sums, finite = _block_sums(row_ptr, ids, altered, scale, VOCAB, BLOCK, NUM_BLOCKS)
    if (finite == 1) & (tl.sum(sums, axis=0) <= 0.0):
        ids = tl.full(ids.shape, -1, dtype=tl.int32)
        scale = 1.0
        sums, finite = _block_sums(row_ptr, ids, altered, scale, VOCAB, BLOCK, NUM_BLOCKS)

    blocks = tl.arange(0, NUM_BLOCKS)
    ends = tl.cumsum(sums, axis=0)
    total = tl.max(ends, axis=0)
    token = 0
    if (finite == 1) & (total > 0.0) & (total < INFINITY):
        goal = tl.where(coin > 0.0, coin * total, 0.0)  # a NaN coin counts as 0
        # A block without mass never holds the token, whatever rounding does to the sums around it.
        block = tl.min(tl.where((ends > goal) & (sums > 0.0), blocks, NUM_BLOCKS), axis=0)
        if block == NUM_BLOCKS:
            block = tl.max(tl.where(sums > 0.0, blocks, -1), axis=0)
        before = tl.max(tl.where(blocks < block, ends, 0.0), axis=0)
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        values, _ = _block_values(row_ptr, block * BLOCK, ids, altered, scale, VOCAB, BLOCK)
        hit = (before + tl.cumsum(values, axis=0) > goal) & (values > 0.0)
        token = tl.min(tl.where(hit, offsets, VOCAB), axis=0)
        if token == VOCAB:  # rounding at the end of the block: its last token with mass
            token = tl.max(tl.where(values > 0.0, offsets, -1), axis=0)
    else:
        token = _argmax_finite(row_ptr, VOCAB, BLOCK)
    return token


@triton.jit
def _block_sums(
    row_ptr, ids, altered, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr, NUM_BLOCKS: tl.constexpr
):
    """Mass of every block [NUM_BLOCKS], and 1 if every entry of the row is finite."""
    blocks = tl.arange(0, NUM_BLOCKS)
    sums = tl.zeros([NUM_BLOCKS], dtype=tl.float32)
    finite = 1
    for start in range(0, VOCAB, BLOCK):
        values, block_finite = _block_values(row_ptr, start, ids, altered, scale, VOCAB, BLOCK)
        sums = tl.where(blocks == start // BLOCK, tl.sum(values, axis=0), sums)
        finite = finite & block_finite
    return sums, finite


@triton.jit
def _block_values(row_ptr, start, ids, altered, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Values of one block: scale * p with the altered tokens put in; and 1 if its entries are finite."""
    offsets = start + tl.arange(0, BLOCK)
    p = tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=0.0)
    finite = tl.min((tl.abs(p) < INFINITY).to(tl.int32), axis=0)
    values = mass_of(p) * scale
    # One step per altered token that lies in this block, so W steps a row: a [W, BLOCK] comparison would spill.
    left = tl.where((ids >= start) & (ids < start + BLOCK), ids, -1)
    token = tl.max(left, axis=0)
    while token >= 0:
        value = tl.sum(tl.where(left == token, altered, 0.0), axis=0)
        values = tl.where(offsets == token, value, values)
        left = tl.where(left == token, -1, left)
        token = tl.max(left, axis=0)
    return values, finite


@triton.jit
def _argmax_finite(row_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Smallest id of the largest finite entry, 0 if none is finite."""
    best = -INFINITY
    token = 0
    for start in range(0, VOCAB, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        p = tl.load(row_ptr + offsets, mask=offsets < VOCAB, other=-INFINITY)
        p = tl.where(tl.abs(p) < INFINITY, p, -INFINITY)
        top = tl.max(p, axis=0)
        if top > best:
            best = top
            token = tl.min(tl.where(p == top, offsets, VOCAB), axis=0)
    return token
