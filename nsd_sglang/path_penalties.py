"""Penalties of every node of a draft tree, as plain decoding applies them to the token it is about to draw.

SGLang's rule, with c the number of times a token stands in the answer so far: `logit - c * frequency - [c > 0] * presence`,
then, where c > 0, divided by `repetition` if positive and multiplied if negative. At a node the answer so far is what was
committed and the path from the root to the node, both included.

B requests, N nodes, D nodes on the longest path, V tokens, R penalised requests. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# Penalised rows are worked on in copies; this bounds one copy (elements of float32), whatever the batch.
_CHUNK_ELEMENTS = 1 << 24


class Penalties(NamedTuple):
    """float32 [R] each, as requests give them; 0, 0 and 1 do nothing."""

    frequency: torch.Tensor
    presence: torch.Tensor
    repetition: torch.Tensor


def count_tokens(tokens: torch.Tensor, valid: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """How often each token occurs, float32 [R, V]. tokens: int64 [R, K] below V; valid: bool [R, K], which of them count."""
    counts = torch.zeros(tokens.shape[0], vocabulary, device=tokens.device)
    return counts.scatter_add_(1, tokens, valid.float())


def penalise_(
    logits: torch.Tensor,  # float [B, N, V], changed in place
    rows: torch.Tensor,  # int64 [R], the penalised requests
    counts: torch.Tensor,  # float32 [R, V], tokens committed before the root
    tokens: torch.Tensor,  # int64 [R, N], token of each node
    path: torch.Tensor,  # int64 [R, N, D], see `tree_paths.paths`
    penalties: Penalties,
) -> None:
    """Apply the penalties of R requests at all their nodes."""
    nodes, vocabulary = logits.shape[1:]
    step = max(1, _CHUNK_ELEMENTS // (nodes * vocabulary))
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        given = Penalties(*(p[part, None, None] for p in penalties))
        before = counts[part].unsqueeze(1)  # [r, 1, V]
        original = logits.index_select(0, rows[part]).float()
        on_path, times = _path_counts(tokens[part], path[part])
        total = before.expand(-1, nodes, -1).gather(2, on_path) + times
        changed = _apply(original.gather(2, on_path), total, given)
        penalised = _apply(original, before, given).scatter_(2, on_path, changed)
        logits.index_copy_(0, rows[part], penalised.to(logits.dtype))


def totals(counts: torch.Tensor, penalties: Penalties) -> tuple[torch.Tensor, torch.Tensor]:
    """What to add to a logit, and then to scale it by, for a token that occurs `counts` times; shapes broadcast."""
    seen = counts > 0
    return -(counts * penalties.frequency) - seen * penalties.presence, torch.where(seen, penalties.repetition, 1.0)


def _apply(logits: torch.Tensor, counts: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    additive, scale = totals(counts, penalties)
    logits = logits + additive
    return torch.where(logits < 0, logits * scale, logits / scale)


def _path_counts(tokens: torch.Tensor, path: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens on the path of each node, int64 [r, N, D], and how often each occurs on that path, float32 [r, N, D].

    Entries behind the root repeat it and count once; equal tokens carry equal counts.
    """
    on_path = tokens.unsqueeze(1).expand(-1, path.shape[1], -1).gather(2, path)
    below_root = path != 0
    same = on_path.unsqueeze(3) == on_path.unsqueeze(2)  # [r, N, D, D]
    times = (same & below_root.unsqueeze(2)).sum(3) + (on_path == tokens[:, :1, None])
    return on_path, times.float()


def forbid_stop_(
    logits: torch.Tensor,  # float [B, N, V], changed in place
    rows: torch.Tensor,  # int64 [R]
    too_early: torch.Tensor,  # bool [R, N]: the next token is not allowed to end the answer
    stop_token_ids: torch.Tensor,  # int64 [R, S], at least one a row, padded with repetitions
) -> None:
    """Give the stop tokens of R requests no probability at the nodes where `min_new_tokens` is not reached."""
    batch_row = rows[:, None, None]
    node = torch.arange(logits.shape[1], device=logits.device)[None, :, None]
    token = stop_token_ids[:, None, :]
    before = logits[batch_row, node, token]
    logits[batch_row, node, token] = before.masked_fill(too_early.unsqueeze(2), float("-inf"))
