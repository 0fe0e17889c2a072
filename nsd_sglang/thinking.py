"""Where a reasoning span begins and ends, token by token, on the device.

Under overlap scheduling the host learns of a round's tokens one round later, so whether a request is inside its span is
kept on the device, one flag a slot of SGLang's request pool, and carried forward by the tokens themselves.

A position is inside the span when the last marker before it is the start token.

Letters in shapes: B requests, N tree nodes, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nsd_sglang.request_rows import to_device
from nsd_sglang.tree_paths import parents as node_parents


def inside_after(tokens: Sequence[int], think_ids: tuple[int, int]) -> bool:
    """Whether the position that follows `tokens` is inside the span. Host side, for a prompt."""
    start, end = think_ids
    for token in reversed(tokens):
        if token == start or token == end:
            return token == start
    return False


def advance(
    inside: torch.Tensor,  # bool [B]
    tokens: torch.Tensor,  # integer [B, T]
    counts: torch.Tensor,  # integer [B]: how many of the T are the request's
    think_ids: tuple[int, int],
) -> torch.Tensor:
    """The flag after each request's tokens, bool [B]."""
    start, end = think_ids
    place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    counted = place <= counts.unsqueeze(1)
    last_start = torch.where(counted & (tokens == start), place, 0).amax(dim=1)
    last_end = torch.where(counted & (tokens == end), place, 0).amax(dim=1)
    return torch.where(last_start == last_end, inside, last_start > last_end)


def inside_at_nodes(
    inside: torch.Tensor,  # bool [B]: before node 0
    candidates: torch.Tensor,  # int64 [B, N]
    retrieve_next_token: torch.Tensor,  # int64 [B, N]
    retrieve_next_sibling: torch.Tensor,  # int64 [B, N]
    max_depth: int,
    topk: int,
    think_ids: tuple[int, int],
) -> torch.Tensor:
    """Whether the position after each node is inside the span, bool [B, N]; what a rescue of its children asks."""
    start, end = think_ids
    parents = node_parents(retrieve_next_token, retrieve_next_sibling, topk)
    opens, closes = candidates == start, candidates == end
    here = ((inside.unsqueeze(1) | opens) & ~closes).expand_as(candidates)
    for _ in range(max_depth - 1):
        above = here.gather(1, parents)
        above[:, 0] = inside
        here = (above | opens) & ~closes
    return here


class ThinkingSpans:
    """The flags of every slot of the request pool."""

    def __init__(self, think_ids: tuple[int, int]):
        self.think_ids = think_ids
        self._inside: torch.Tensor | None = None  # bool [slots]

    def begin(self, batch: Any) -> None:
        """Before a prefill: its requests start from what their prompt says (a retracted request's answer so far is part
        of it), known to the host by then."""
        slots = batch.req_pool_indices
        if self._inside is None:
            self._inside = torch.zeros(batch.req_to_token_pool.req_to_token.shape[0], dtype=torch.bool, device=slots.device)
        flags = [inside_after([*req.origin_input_ids, *req.output_ids], self.think_ids) for req in batch.reqs]
        self._inside[slots] = to_device(np.array(flags, np.bool_), slots.device)

    def before(self, batch: Any) -> torch.Tensor:
        """The flag of each request before the step's node 0, bool [B]."""
        return self._inside[batch.req_pool_indices]

    def commit(
        self,
        batch: Any,
        root_tokens: torch.Tensor,  # int64 [B]
        tokens: torch.Tensor,  # int32 [B, T]: accepted drafts, then the bonus
        accepted_drafts: torch.Tensor,  # int [B]
    ) -> None:
        """Carry the flags over node 0 and the accepted drafts; the bonus is the next step's node 0."""
        ones = torch.ones_like(accepted_drafts)
        inside = advance(self.before(batch), root_tokens.unsqueeze(1), ones, self.think_ids)
        self._inside[batch.req_pool_indices] = advance(inside, tokens, accepted_drafts, self.think_ids)
