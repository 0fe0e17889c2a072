"""From softmax to the law that plain decoding samples: top-k, top-p and min-p in SGLang's order.

SGLang's verify step takes top-p of what top-k left and knows no min-p. Its plain sampler takes both of the whole
distribution (torch: `top_k_top_p_min_p_sampling_from_probs_torch`; FlashInfer: order "joint"), except that with FlashInfer a
batch in which any request asks for min-p takes top-p of what top-k left. min-p then removes what is below that share of the
row's largest probability. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import Callable

import torch

Renorm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def joint(probs: torch.Tensor, top_ks: torch.Tensor, top_ps: torch.Tensor, top_k: Renorm, top_p: Renorm) -> torch.Tensor:
    """Keep what top-k and top-p keep of the whole row, rescaled to sum 1. probs: float32 [rows, V]; top_ks, top_ps: [rows];
    top_k, top_p: SGLang's renormalising filters."""
    kept = top_k(probs, top_ks)
    return _rescale_(kept.masked_fill_(top_p(probs, top_ps) <= 0, 0.0))


def greedy_(probs: torch.Tensor, greedy: torch.Tensor) -> torch.Tensor:
    """Put all mass of the rows marked in `greedy` (bool [rows]) on their first most likely token, in place.

    A top-k filter with k = 1 keeps every token that ties for the maximum, and ties are common in bfloat16.
    """
    best = probs.argmax(-1, keepdim=True)
    value = torch.where(greedy[:, None], 1.0, probs.gather(1, best))
    return probs.masked_fill_(greedy[:, None], 0.0).scatter_(1, best, value)


def min_p_(probs: torch.Tensor, min_ps: torch.Tensor) -> torch.Tensor:
    """Remove what is below `min_ps` [rows] times the largest probability of its row, in place; rescaled to sum 1."""
    below = probs < probs.amax(-1, keepdim=True) * min_ps[:, None]
    return _rescale_(probs.masked_fill_(below, 0.0))


def _rescale_(probs: torch.Tensor) -> torch.Tensor:
    return probs.div_(probs.sum(-1, keepdim=True).clamp_min_(1e-8))
