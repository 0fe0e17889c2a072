"""Sampling in torch: renormalisation after top-k and top-p, SGLang's seeded hash, and its two verifiers.

Probabilities are float32, one distribution per row.
"""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

# Wide enough for the nucleus of most rows; a row that needs more is sorted whole.
_NUCLEUS_WIDTH = 1024


def enable_batch_invariant_mode(enable_bmm: bool = True) -> None:
    """Under --enable-deterministic-inference seeds decide every draw; torch's own products stay, which can differ in the last
    bits from one batch size to another."""
    logger.warning("CPU platform: requests' seeds are honoured, but a product of matrices may round differently in another batch")


def row_argmax(x: torch.Tensor) -> torch.Tensor:
    """argmax over the last dimension, the lowest index among ties: [rows, V] to [rows] int64."""
    return torch.argmax(x, dim=-1)


def top_k_renorm_prob(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Zero what is smaller than the k-th largest of its row, ties with it stay, and rescale to sum 1.

    Args:
        probs: [rows, V].
        top_ks: [rows] int, at least 1; V or more keeps the whole row.
    """
    vocab = probs.shape[-1]
    cut = top_ks < vocab
    pivot = probs.new_zeros(probs.shape[0], 1)
    if cut.any():
        ks = top_ks[cut].long()
        largest = probs[cut].topk(int(ks.max()), dim=-1).values
        pivot[cut] = largest.gather(1, ks[:, None] - 1)
    return _keep(probs, pivot)


def top_p_renorm_prob(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the fewest largest whose sum reaches p, ties with the smallest of them stay, and rescale to sum 1.

    Args:
        probs: [rows, V].
        top_ps: [rows] float in (0, 1]; 1 keeps the whole row.
    """
    pivot = probs.new_zeros(probs.shape[0], 1)
    todo = (top_ps < 1.0).nonzero()[:, 0]
    for width in (min(_NUCLEUS_WIDTH, probs.shape[-1]), probs.shape[-1]):
        if todo.numel() == 0:
            break
        largest = probs[todo].topk(width, dim=-1).values
        mass = largest.cumsum(-1)
        top_p = top_ps[todo].to(mass.dtype)[:, None]
        # A row may sum to less than p by rounding: then everything stays.
        reached = mass[:, -1] >= top_p[:, 0]
        last = torch.searchsorted(mass, top_p).clamp_(max=width - 1)
        pivot[todo[reached]] = largest.gather(1, last)[reached]
        todo = todo[~reached]
    return _keep(probs, pivot)


def _keep(probs: torch.Tensor, pivot: torch.Tensor) -> torch.Tensor:
    kept = probs.masked_fill(probs < pivot, 0.0)
    return kept.div_(kept.sum(-1, keepdim=True).clamp_min_(1e-8))


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 of (seed, position, column) as SGLang's seeded sampling draws it.

    Args:
        seed: [n], all 64 bits count.
        positions: [n], the low 32 bits count.
        col_indices: [m], the low 32 bits count.

    Returns:
        [n, m] uint32.
    """
    seed, column = seed.to(torch.int64)[:, None], col_indices.to(torch.int64)[None, :]
    blocks = (seed, seed >> 32, positions.to(torch.int64)[:, None], column)
    # int64 throughout: products wrap, and their low 32 bits are those of the unsigned product.
    h: torch.Tensor | int = 0
    for block in blocks:
        k = _low(_low(block) * 0xCC9E2D51)
        k = _low(_rotate(k, 15) * 0x1B873593)
        h = _low(_rotate(h ^ k, 13) * 5 + 0xE6546B64)
    h = h ^ 16  # the length in bytes
    h = _low((h ^ (h >> 16)) * 0x85EBCA6B)
    h = _low((h ^ (h >> 13)) * 0xC2B2AE35)
    return (h ^ (h >> 16)).to(torch.uint32)


def _low(x: torch.Tensor) -> torch.Tensor:
    return x & 0xFFFFFFFF


def _rotate(x: torch.Tensor, bits: int) -> torch.Tensor:
    return _low((x << bits) | (x >> (32 - bits)))
