"""Key-value pool that moves accepted tokens with indexing where SGLang launches a Triton copy."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, move_kv_cache_native


class CpuMHATokenToKVPool(MHATokenToKVPool):
    """SGLang's multi-head pool; only the copy between slots differs."""

    def _init_kv_copy_and_warmup(self) -> None:
        # Configures the Triton copy and launches it once.
        self._kv_copy_config = None

    def _move_kv_cache_impl(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        """Copy slots `src_loc` to `tgt_loc`, both [N] int64, in every layer. Overlap is safe: rows are gathered first."""
        move_kv_cache_native(self.k_buffer, self.v_buffer, tgt_loc, src_loc)
