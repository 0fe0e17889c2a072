"""Penalties of a request that was retracted and is prefilled again.

SGLang starts its counts anew with every prefill, so that the token that a repeated prefill draws would be treated as the
first of its answer. What it is about to apply is replaced by a recount of the answer so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nsd_sglang.path_penalties import Penalties, count_tokens, totals
from nsd_sglang.request_rows import padded, stop_ids, to_device


def restore_penalties_(batch: Any) -> None:
    """Set `acc_additive_penalties` and `acc_scaling_penalties` of a prefill batch for its requests that have an answer."""
    info = batch.sampling_info
    if info is None or info.acc_additive_penalties is None:  # no request has penalties
        return
    rows = [i for i, req in enumerate(batch.reqs) if len(req.output_ids)]
    if not rows:
        return
    device, vocabulary = info.acc_additive_penalties.device, info.acc_additive_penalties.shape[1]
    reqs = [batch.reqs[i] for i in rows]
    given = [
        (p.frequency_penalty, p.presence_penalty, p.repetition_penalty) for p in (req.sampling_params for req in reqs)
    ]
    index = to_device(np.array(rows, np.int64), device)
    tokens = to_device(padded([req.output_ids for req in reqs]), device)
    lengths = to_device(np.array([len(req.output_ids) for req in reqs], np.int64), device)
    counts = count_tokens(tokens, torch.arange(tokens.shape[1], device=device) < lengths.unsqueeze(1), vocabulary)
    penalties = Penalties(*to_device(np.array(given, np.float32), device).unsqueeze(2).unbind(1))
    additive, scale = totals(counts, penalties)
    for line, req in zip(additive, reqs):
        if len(req.output_ids) < req.sampling_params.min_new_tokens and stop_ids(req):
            line[to_device(np.array(stop_ids(req), np.int64), device)] = float("-inf")
    info.acc_additive_penalties.index_copy_(0, index, additive)
    if info.acc_scaling_penalties is not None:
        info.acc_scaling_penalties.index_copy_(0, index, scale)
