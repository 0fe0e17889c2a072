"""The one decision that NSD takes from SGLang: which drafted tokens a verify step keeps.

`NucleusAcceptance` stands where `eagle_sample` calls its sampling kernel. Penalties, bias, grammar masks, temperature,
top-k and top-p, seeded coins before it, the broadcast from rank 0 and all bookkeeping after it are SGLang's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nsd_sglang.control import BatchControl, StepControl
from nsd_sglang.kernels.types import Proposals, VerifyResult
from nsd_sglang.kernels.verify import verify_tree
from nsd_sglang.options import NSDOptions
from nsd_sglang.thinking import ThinkingSpans, inside_at_nodes


class NucleusAcceptance:
    """Callable with the keyword arguments of SGLang's tree and chain sampling kernels.

    Only within `step`, which names the batch and its recorded proposals.

    trace: where verify steps are recorded (`nsd_sglang.trace.Trace`), None for nowhere.
    """

    def __init__(self, options: NSDOptions, trace: Any = None):
        self.backend = options.verify_backend
        self.gate = options.gate
        self.control = BatchControl(options)
        self.spans = None if options.think_ids is None else ThinkingSpans(options.think_ids)
        self.trace = trace
        self._batch: Any = None
        self._proposals: Proposals | None = None
        self._outcome: torch.Tensor | None = None

    @contextmanager
    def step(self, batch: Any, proposals: Proposals | None) -> Iterator[None]:
        """One verify step. batch: the ScheduleBatch to verify, its verify input in `spec_info`. proposals: None when the
        draft proposed its top-k."""
        self._batch, self._proposals, self._outcome = batch, proposals, None
        try:
            yield
        finally:  # keep no batch, and none of its tensors, alive
            self._batch, self._proposals = None, None

    def take_outcome(self) -> torch.Tensor | None:
        """What the last step's verifier found, float32 [3, B]: rescued tokens, the bound on the deviation, and nodes
        whose children the standard test all rejected, where the gate decides. None when SGLang's greedy path, which
        is exact, verified the step."""
        outcome, self._outcome = self._outcome, None
        return outcome

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
        proposals, sibling_coins, gate_coins = self._proposals, None, None
        if proposals is not None and self._batch.spec_info.topk > 1:  # a chain has no second siblings
            sibling_coins = self._more_coins(candidates, 1)
        rows = self.control.rows(self._batch.reqs, candidates.shape[0], candidates.device)
        if rows.epsilon is not None:
            gate_coins = self._more_coins(candidates, 2)
        if rows.thinking is not None:
            rows, gate_coins = self._inside_span(
                rows, gate_coins, candidates, retrive_next_token, retrive_next_sibling, accept_index.shape[1]
            )
        result = verify_tree(
            candidates,
            retrive_next_token,
            retrive_next_sibling,
            target_probs,
            uniform_samples,
            uniform_samples_for_final_sampling,
            rows.threshold,
            max_depth=accept_index.shape[1],
            proposals=proposals,
            sibling_coins=sibling_coins,
            gate_coins=gate_coins,
            epsilon=rows.epsilon,
            protected=rows.protected,
            gate=self.gate,
            backend=self.backend,
        )
        predicts.copy_(result.predict)
        accept_index.copy_(result.accept_index)
        accept_token_num.copy_(result.num_correct_drafts)
        if self.trace is not None:
            from nsd_sglang.trace_nodes import VerifyStep

            tree = (candidates, retrive_next_token, retrive_next_sibling, target_probs, uniform_samples, sibling_coins)
            self.trace.record(self._batch, VerifyStep(*tree, rows.threshold, proposals, result, self.backend))
        self._outcome = _outcome(result, retrive_next_token, rows.threshold, gate_coins)

    def _inside_span(
        self,
        rows: StepControl,
        gate_coins: torch.Tensor | None,  # float32 [B, N]
        candidates: torch.Tensor,  # int64 [B, N]
        retrieve_next_token: torch.Tensor,  # int64 [B, N]
        retrieve_next_sibling: torch.Tensor,  # int64 [B, N]
        max_depth: int,
    ) -> tuple[StepControl, torch.Tensor]:
        """Rows with the gate shut where a request limited to its reasoning span is outside it.

        A row without a node inside has threshold 0; a single node is shut by a gate coin of 1, and reports no deviation.
        """
        inside = inside_at_nodes(
            self.spans.before(self._batch),
            candidates,
            retrieve_next_token,
            retrieve_next_sibling,
            max_depth,
            self._batch.spec_info.topk,
            self.spans.think_ids,
        )
        open_nodes = inside | ~rows.thinking.unsqueeze(1)
        if gate_coins is None:
            gate_coins = torch.zeros_like(candidates, dtype=torch.float32)
        threshold = torch.where(open_nodes.any(dim=1), rows.threshold, 0.0)
        return rows._replace(threshold=threshold), torch.where(open_nodes, gate_coins, 1.0)

    def _more_coins(self, candidates: torch.Tensor, block: int) -> torch.Tensor:
        """Coins that SGLang does not draw, float32 [B, N]: block 1 tests second and later siblings, block 2 the budget.
        With a seed they are the columns behind SGLang's own, so that the request reproduces and no coin serves two
        tests."""
        from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

        seed = self._batch.sampling_info.sampling_seed
        if seed is None:
            return torch.rand_like(candidates, dtype=torch.float32)
        nodes = candidates.shape[1]
        first = block * nodes + 1
        coins, _ = _seeded_verify_coins(
            sampling_seed=seed,
            seq_lens=self._batch.seq_lens,
            draft_token_num=first + nodes,
            device=candidates.device,
        )
        return coins[:, first:].contiguous()


def _outcome(
    result: VerifyResult,
    retrieve_next_token: torch.Tensor,  # int64 [B, N]
    threshold: torch.Tensor,  # float32 [B]
    gate_coins: torch.Tensor | None,  # float32 [B, N]
) -> torch.Tensor:
    """`NucleusAcceptance.take_outcome` of one verification, float32 [3, B]."""
    batch, nodes = retrieve_next_token.shape
    accepted = result.num_correct_drafts.long().unsqueeze(1)
    last = result.accept_index.gather(1, accepted).squeeze(1) % nodes
    # The walk ended at a node with children: all of them were tested, and none was taken.
    has_children = retrieve_next_token.gather(1, last.long().unsqueeze(1)).squeeze(1) >= 0
    refused = has_children & (accepted.squeeze(1) < result.accept_index.shape[1] - 1) & (threshold > 0)
    if gate_coins is not None:  # a shut gate decides nothing
        refused &= gate_coins.gather(1, last.long().unsqueeze(1)).squeeze(1) < 1
    return torch.stack((result.rescued.float(), result.tv_bound.float(), result.rescued.float() + refused))
