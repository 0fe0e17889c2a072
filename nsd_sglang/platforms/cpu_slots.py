"""Key-value slots of drafted tokens: which slot a token is written to, in torch.

Everywhere below `req_to_token` is [requests, max_len] int32, row r listing the slots of request r by position, and
`req_pool_indices` is [B], the rows of the batch. Outputs are written in place, as SGLang's kernels do.
"""

from __future__ import annotations

import torch


def _ragged(rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, column) of every cell in columns start[i] .. end[i] of rows[i], request by request; both [sum(end - start)]."""
    lengths = (end - start).long()
    total = int(lengths.sum())
    first = torch.cumsum(lengths, 0) - lengths
    columns = torch.arange(total) + (start.long() - first).repeat_interleave(lengths)
    return rows.long().repeat_interleave(lengths), columns


def assign_extend_cache_locs(
    req_pool_indices, req_to_token, start_offset, end_offset, batch_size, draft_token_num, device
) -> torch.Tensor:
    """Slots of positions start_offset[i] .. end_offset[i] of every request, packed: [B * draft_token_num] int64."""
    out = torch.empty(batch_size * draft_token_num, dtype=torch.int64)
    slots = req_to_token[_ragged(req_pool_indices, start_offset, end_offset)]
    out[: slots.numel()] = slots
    return out


def assign_req_to_token_pool(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size
) -> None:
    """Write the packed slots `out_cache_loc` to positions start_offset[i] .. end_offset[i] of every request."""
    cells = _ragged(req_pool_indices, start_offset, end_offset)
    req_to_token[cells] = out_cache_loc[: cells[0].numel()].to(req_to_token.dtype)


def assign_draft_cache_locs_contiguous(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_cols, positions=None, mrope=None
) -> None:
    """Fill `out_cache_loc` [B * topk * num_cols] with the slots that follow each request's `seq_lens` tokens.

    `positions` [B * topk] and `mrope` [3, B * topk], when given, are filled with the position of the first of them.
    """
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_cols)
    out_cache_loc.view(columns.shape).copy_(req_to_token[req_pool_indices.long()[:, None], columns])
    for target in (positions, mrope):
        if target is not None:
            target.copy_(seq_lens.repeat_interleave(topk))


def fill_front_out_cache_loc(num_front, out_cache_loc, front_out_cache_loc) -> None:
    """Pack the first num_front[i] slots of request i's window; the windows are `out_cache_loc` [B * W] in equal parts."""
    window = out_cache_loc.view(num_front.numel(), -1)
    front = window[torch.arange(window.shape[1]) < num_front[:, None]]
    front_out_cache_loc[: front.numel()] = front


def fill_accept_out_cache_loc(accept_index, out_cache_loc, accept_out_cache_loc, size) -> None:
    """Pack the slots of the accepted nodes; `accept_index` [B, depth] indexes `out_cache_loc`, -1 where nothing was."""
    accepted = accept_index[accept_index >= 0].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def fill_bonus_tokens(accept_tokens, accept_lens, bonus_tokens, accept_stride, batch_size) -> None:
    """bonus_tokens[i] is the last of request i's accept_lens[i] tokens in `accept_tokens` [B, accept_stride]."""
    last = (accept_lens.long() - 1)[:, None]
    bonus_tokens.copy_(accept_tokens.view(batch_size, accept_stride).gather(1, last)[:, 0])


def gather_spec_extras(indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf):
    """Rows `indices` of the four buffers that relay a draft state between overlapped batches; the last may be None."""
    hidden_states = None if hidden_states_buf is None else hidden_states_buf[indices]
    return topk_p_buf[indices], topk_index_buf[indices], output_tokens_buf[indices], hidden_states
