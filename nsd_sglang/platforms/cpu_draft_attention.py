"""Attention of the drafter while it grows a tree, one backend per step."""

from __future__ import annotations

import torch

from nsd_sglang.platforms.cpu_attention import CpuAttention


class CpuDraftAttention:
    """Container of `num_steps - 1` backends, as SGLang's draft workers expect it.

    At step s a request has `topk` rows, one per branch. A row sees the prefix and what its own branch wrote in steps
    0 .. s, also where the branch changed parents in between: SGLang's kernels do the same.
    """

    needs_cpu_seq_lens = True

    def __init__(self, runner, topk: int, num_steps: int) -> None:
        self.topk, self.num_steps = topk, num_steps
        self.attn_backends = [CpuAttention(runner) for _ in range(num_steps - 1)]
        branch, step = torch.arange(topk).repeat_interleave(num_steps), torch.arange(num_steps).repeat(topk)
        same_branch = branch == torch.arange(topk)[:, None]
        self._visible = [same_branch & (step <= s) for s in range(num_steps - 1)]  # each [topk, topk * num_steps]

    def init_forward_metadata(self, forward_batch) -> None:
        """`forward_batch.out_cache_loc` is [B * topk * num_steps]: all the slots the steps are going to write."""
        for backend, visible in zip(self.attn_backends, self._visible):
            backend.passes = []
            if forward_batch.batch_size:
                args = (forward_batch, forward_batch.seq_lens, forward_batch.out_cache_loc, visible)
                backend.passes = [backend.one_pass(*args, queries=self.topk)]
