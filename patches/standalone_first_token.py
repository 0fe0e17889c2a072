"""The first prompt token in a standalone draft's context.

SGLang drafts with EAGLE's shift by one: slot i of the shared KV pool holds the draft's state for token i + 1, because an
EAGLE head reads the target's state of token i beside it. A prompt of n tokens has n slots, so n + 1 tokens (the prompt and
the first answer token) do not fit, and the one that drops out is the first, the beginning-of-sequence token that models
lean on. A slot more would have to come from the next decode step's allocation, at the price of another draft forward in
every round. What costs nothing is to choose which token drops out: here it is the second.

Wraps `EagleDraftWorker._draft_extend_for_prefill(batch, target_hidden_states, next_token_ids, ...)` of one draft worker.
"""

from __future__ import annotations

from typing import Any

import torch


def install(draft_worker: Any) -> None:
    """Keep the first token of every prompt that `draft_worker` prefills from its beginning."""
    stock = draft_worker._draft_extend_for_prefill

    def _draft_extend_for_prefill(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.forward_mode.is_idle():
            batch.input_ids = keep_first_tokens(batch.input_ids, batch.extend_lens, batch.prefix_lens)
        return stock(batch, *args, **kwargs)

    draft_worker._draft_extend_for_prefill = _draft_extend_for_prefill


def keep_first_tokens(input_ids: torch.Tensor, extend_lens: list[int], prefix_lens: list[int]) -> torch.Tensor:
    """input_ids int64 [sum of extend_lens], rows of one prompt after the other; where a prompt begins here (prefix 0) and
    has a second token, that one becomes a copy of the first. SGLang's shift then drops the original and keeps the copy."""
    starts, position = [], 0
    for extend, prefix in zip(extend_lens, prefix_lens):
        if prefix == 0 and extend > 1:
            starts.append(position)
        position += extend
    if not starts:
        return input_ids
    first = torch.tensor(starts, dtype=torch.int64).to(input_ids.device, non_blocking=True)
    kept = input_ids.clone()
    kept[first + 1] = input_ids[first]
    return kept
