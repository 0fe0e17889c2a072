"""From what requests hold on the host to tensors with a row for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_device(values: np.ndarray, device: str | torch.device) -> torch.Tensor:
    """A copy of `values` on the device, made without waiting for it."""
    from sglang.srt.utils.common import is_pin_memory_available

    host = torch.from_numpy(values)
    return (host.pin_memory() if is_pin_memory_available(device) else host).to(device, non_blocking=True)


def stop_ids(req: Any) -> list[int]:
    """The tokens that `min_new_tokens` holds back, SGLang's set: the request's stop ids and the model's ends."""
    ids = {*(req.sampling_params.stop_token_ids or ()), *(req.eos_token_ids or ())}
    if req.tokenizer is not None:
        ids |= {*(req.tokenizer.additional_stop_token_ids or ()), req.tokenizer.eos_token_id}
    return sorted(ids - {None})


def padded(rows: list[Any]) -> np.ndarray:
    """Ragged token ids as int64 [len(rows), longest]; a row is padded with its first id, an empty row with 0."""
    out = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for line, row in zip(out, rows):
        if len(row):
            line[:] = row[0]
            line[: len(row)] = row
    return out
