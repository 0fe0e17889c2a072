"""A standalone draft that conditions on the whole prefix.

SGLang drafts with EAGLE's shift: slot i of the KV pool that draft and target share holds the draft's state for token i + 1,
since an EAGLE head reads the target's state of token i beside it. A standalone draft inherits the shift though it reads no
target state, and n slots then hold n of the n + 1 tokens of a prompt and its first answer token: the first token, often
the beginning-of-sequence token that models lean on, is never seen.

Here slot i of a standalone draft holds token i, as in the target. Everything the draft does in a round runs one slot
further than in SGLang, which takes one more reserved slot a request. After a prefill the newest token has no slot yet, so
the first round of a request begins with one more draft pass, which computes that token's state and the root's proposals;
the same pass repeats, for the other requests of the batch, what their last one left.

Wraps, on one draft worker, `EagleDraftWorker._draft_extend_for_prefill(batch, target_hidden_states, next_token_ids, ...)`,
`_draft_extend_for_decode(batch, batch_result, *, kv_loc_plan)` and `draft(batch, ...)`; in their modules,
`build_eagle_verify_input(batch, ...)` and `get_alloc_len_per_decode()`.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch


def install(draft_worker: Any) -> None:
    """Let `draft_worker` (SGLang's StandaloneDraftWorker) hold token i in slot i. Call before KV pools are sized."""
    from sglang.srt.mem_cache import allocation_sizing
    from sglang.srt.model_executor import pool_configurator
    from sglang.srt.speculative import eagle_worker_v2

    from nsd_sglang.patches.assign import assign

    stock_length = allocation_sizing.get_alloc_len_per_decode
    for module in (allocation_sizing, pool_configurator):
        assign(module, "get_alloc_len_per_decode", lambda: stock_length() + 1)
    stock_build = eagle_worker_v2.build_eagle_verify_input

    def build_eagle_verify_input(batch: Any, *args: Any, **kwargs: Any) -> Any:
        # The target verifies from its own, unmoved position.
        return stock_build(getattr(batch, "_nsd_unmoved", batch), *args, **kwargs)

    assign(eagle_worker_v2, "build_eagle_verify_input", build_eagle_verify_input)
    prefix = _WholePrefix(draft_worker)
    for name in ("_draft_extend_for_prefill", "_draft_extend_for_decode", "draft"):
        setattr(draft_worker, name, getattr(prefix, name))


class _WholePrefix:
    """The three methods that replace a draft worker's, around SGLang's own."""

    def __init__(self, draft_worker: Any):
        self.worker = draft_worker
        self.stock_prefill = draft_worker._draft_extend_for_prefill
        self.stock_decode = draft_worker._draft_extend_for_decode
        self.stock_draft = draft_worker.draft

    def _draft_extend_for_prefill(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Prefill without the shift. The root that SGLang makes from it belongs one token earlier; `draft` replaces it."""
        if batch.forward_mode.is_idle():
            return self.stock_prefill(batch, *args, **kwargs)
        for req in batch.reqs:
            req._nsd_root_pending = True
        unshifted, runner = batch.input_ids, self.worker.draft_runner
        stock_forward = runner.forward

        def forward(forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
            forward_batch.input_ids = unshifted
            return stock_forward(forward_batch, *args, **kwargs)

        runner.forward = forward
        try:
            return self.stock_prefill(batch, *args, **kwargs)
        finally:
            del runner.forward  # the instance's; the class's shows again

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, *, kv_loc_plan: Any = None) -> None:
        """SGLang's pass over the accepted tokens, one slot further. Its plan is of the verify window, which is not this."""
        if batch.forward_mode.is_idle():
            return self.stock_decode(batch, batch_result, kv_loc_plan=kv_loc_plan)
        return self.stock_decode(self._with_window(_moved(batch)), batch_result)

    def draft(self, batch: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_idle():
            return self.stock_draft(batch, **kwargs)
        if any(getattr(req, "_nsd_root_pending", False) for req in batch.reqs):
            self._draw_roots(batch)
            for req in batch.reqs:
                req._nsd_root_pending = False
        drafted = self.stock_draft(_moved(batch), **kwargs)
        verify_input = drafted[0] if isinstance(drafted, tuple) else drafted
        verify_input.kv_loc_plan = verify_input.prepared_out_cache_loc = None  # planned for the draft's slots
        return drafted

    def _draw_roots(self, batch: Any) -> None:
        """Compute the newest token's state in its slot, and new root proposals, for every request of the batch.

        It is the decode extend of a round that accepted nothing: a window as wide as the tree whose first token is the
        newest. What the rest of the window writes is overwritten before it is read.
        """
        draft_input, width = batch.spec_info, self.worker.speculative_num_draft_tokens
        newest = draft_input.bonus_tokens
        window = torch.zeros((newest.shape[0], width), dtype=torch.int64, device=newest.device)
        window[:, 0] = newest
        result = SimpleNamespace(
            accept_lens=torch.ones_like(newest, dtype=torch.int32),
            next_token_ids=window.flatten(),
            logits_output=SimpleNamespace(hidden_states=None),
            new_seq_lens=batch.seq_lens,
            next_draft_input=SimpleNamespace(),
            prepared_draft_extend_inputs=None,
        )
        self.stock_decode(self._with_window(copy.copy(batch)), result)
        for name in ("topk_p", "topk_index", "draft_probs"):
            if hasattr(result.next_draft_input, name):
                setattr(draft_input, name, getattr(result.next_draft_input, name))

    def _with_window(self, batch: Any) -> Any:
        """Set the slots that a decode extend writes: as many as the tree has nodes, from the batch's position on. SGLang
        leaves those of the verify step there."""
        from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

        batch.out_cache_loc = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.worker.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            batch_size=len(batch.req_pool_indices),
            draft_token_num=self.worker.speculative_num_draft_tokens,
            device=batch.device,
        )
        return batch


def _moved(batch: Any) -> Any:
    """A copy of the ScheduleBatch that stands one token further; `_nsd_unmoved` is the original."""
    moved = copy.copy(batch)
    moved._nsd_unmoved = batch
    moved.seq_lens = batch.seq_lens + 1
    if batch.seq_lens_cpu is not None:
        moved.seq_lens_cpu = batch.seq_lens_cpu + 1
    if batch.seq_lens_sum is not None:
        moved.seq_lens_sum = batch.seq_lens_sum + len(batch.seq_lens)
    return moved
