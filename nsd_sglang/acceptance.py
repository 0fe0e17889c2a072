"""The one decision that NSD takes from SGLang: which drafted tokens a verify step keeps.

`NucleusAcceptance` stands where `eagle_sample` calls its sampling kernel. Penalties, bias, grammar masks, temperature,
top-k and top-p, seeded coins before it, the broadcast from rank 0 and all bookkeeping after it are SGLang's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nsd_sglang.kernels.types import Proposals
from nsd_sglang.kernels.verify import verify_tree
from nsd_sglang.options import NSDOptions


class NucleusAcceptance:
    """Callable with the keyword arguments of SGLang's tree and chain sampling kernels.

    Only within `step`, which names the batch and its recorded proposals.

    trace: where verify steps are recorded (`nsd_sglang.trace.Trace`), None for nowhere.
    """

    def __init__(self, options: NSDOptions, trace: Any = None):
        self.threshold = options.threshold
        self.backend = options.verify_backend
        self.trace = trace
        self._batch: Any = None
        self._proposals: Proposals | None = None

    @contextmanager
    def step(self, batch: Any, proposals: Proposals | None) -> Iterator[None]:
        """One verify step. batch: the ScheduleBatch to verify, its verify input in `spec_info`. proposals: None when the
        draft proposed its top-k."""
        self._batch, self._proposals = batch, proposals
        try:
            yield
        finally:  # keep no batch, and none of its tensors, alive
            self._batch, self._proposals = None, None

    def __call__(
        self,
        *,
        predicts: torch.Tensor,  # int32 [B * N], written
        accept_index: torch.Tensor,  # int32 [B, depth], written
        accept_token_num: torch.Tensor,  # int32 [B], written: accepted drafts
        candidates: torch.Tensor,  # int64 [B, N]
        retrive_next_token: torch.Tensor,  # int64 [B, N]
        retrive_next_sibling: torch.Tensor,  # int64 [B, N]
        uniform_samples: torch.Tensor,  # float32 [B, N]
        uniform_samples_for_final_sampling: torch.Tensor,  # float32 [B]
        target_probs: torch.Tensor,  # float32 [B, N, V]
        **_: Any,
    ) -> None:
        """Verify a batch of trees in place. The flat node indices that SGLang also passes are b * N + i, as the
        verifier's own; its acceptance thresholds were checked to be 1 when the server started."""
        proposals, sibling_coins = self._proposals, None
        if proposals is not None and self._batch.spec_info.topk > 1:  # a chain has no second siblings
            sibling_coins = self._sibling_coins(candidates)
        threshold = torch.full_like(uniform_samples_for_final_sampling, self.threshold)
        result = verify_tree(
            candidates,
            retrive_next_token,
            retrive_next_sibling,
            target_probs,
            uniform_samples,
            uniform_samples_for_final_sampling,
            threshold,
            max_depth=accept_index.shape[1],
            proposals=proposals,
            sibling_coins=sibling_coins,
            backend=self.backend,
        )
        predicts.copy_(result.predict)
        accept_index.copy_(result.accept_index)
        accept_token_num.copy_(result.num_correct_drafts)
        if self.trace is not None:
            from nsd_sglang.trace_nodes import VerifyStep

            tree = (candidates, retrive_next_token, retrive_next_sibling, target_probs, uniform_samples, sibling_coins)
            self.trace.record(self._batch, VerifyStep(*tree, threshold, proposals, result, self.backend))

    def _sibling_coins(self, candidates: torch.Tensor) -> torch.Tensor:
        """Coins for second and later siblings, float32 [B, N]: the columns behind those that SGLang uses, so that a
        seeded request reproduces and no coin serves two tests."""
        from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

        seed = self._batch.sampling_info.sampling_seed
        if seed is None:
            return torch.rand_like(candidates, dtype=torch.float32)
        nodes = candidates.shape[1]
        coins, _ = _seeded_verify_coins(
            sampling_seed=seed,
            seq_lens=self._batch.seq_lens,
            draft_token_num=2 * nodes + 1,
            device=candidates.device,
        )
        return coins[:, nodes + 1 :].contiguous()
