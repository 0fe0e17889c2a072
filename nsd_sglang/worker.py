"""SGLang's V2 speculative workers with nucleus acceptance.

Drafting, target forward, radix cache, KV bookkeeping, overlap scheduling, the grammar barrier and the broadcast over
tensor-parallel ranks are the base class's. A batch whose requests are all greedy takes SGLang's greedy path.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.auxiliary_output import append_auxiliary_output
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import MultiLayerEagleWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from nsd_sglang import trace
from nsd_sglang.acceptance import NucleusAcceptance
from nsd_sglang.drafting import SampledDrafting
from nsd_sglang.kernels.types import Proposals
from nsd_sglang.node_logits import NodeLogits
from nsd_sglang.options import NSDOptions
from nsd_sglang.patches import (
    answer_report,
    draft_proposals,
    finish_state,
    node_logits,
    row_headroom,
    standalone_hidden,
    standalone_prefix,
    verify_kernels,
)
from nsd_sglang.report import Ledger, StepOutcome
from nsd_sglang.restored_penalties import restore_penalties_


def nsd_worker_class(base: type, options: NSDOptions) -> type:
    """The worker class that SGLang chose for the drafter's algorithm, with NSD's acceptance.

    Raises TypeError for a class NSD was not written for (a platform's own replacement worker, for instance).
    """
    if base not in (EAGLEWorkerV2, MultiLayerEagleWorkerV2, StandaloneWorkerV2):
        raise TypeError(f"NSD subclasses SGLang's EAGLE and standalone workers, this server uses {base.__qualname__}")
    return type(f"NSD{base.__name__}", (_NSDWorker, base), {"nsd_options": options, "__module__": __name__})


class _NSDWorker:
    """Mixed in before one of SGLang's workers; `nsd_options` is set by `nsd_worker_class`."""

    nsd_options: NSDOptions

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any):
        spec = get_spec()
        self._acceptance = NucleusAcceptance(self.nsd_options, trace.for_this_process(self.nsd_options))
        node_law = NodeLogits(joint_filters=get_exec().kernel.sampling_backend == "pytorch")
        node_logits.install(node_law)
        verify_kernels.install(node_law.filtered(self._acceptance))
        row_headroom.install()
        finish_state.install()
        self._ledger = None
        if self.nsd_options.report:
            self._ledger = Ledger(self.nsd_options)
            answer_report.install_scheduler(self.nsd_options, self._ledger)
        self._sampled = spec.speculative_use_rejection_sampling
        if self._sampled:
            self._drafting = SampledDrafting(spec.speculative_eagle_topk, self.nsd_options.candidates)
            draft_proposals.install(self._drafting)
        with self._stock_sampler_checks_off():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        if isinstance(self, StandaloneWorkerV2):
            standalone_prefix.install(self._draft_worker)
            standalone_hidden.install(target_worker.model_runner)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> Any:
        with self._stock_sampler_checks_off():
            return super().alloc_memory_pool(*args, **kwargs)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self._acceptance.spans is not None and batch.forward_mode.is_extend():
            self._acceptance.spans.begin(batch)
        if batch.forward_mode.is_extend():
            restore_penalties_(batch)
        return super().forward_batch_generation(batch, *args, **kwargs)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        root_tokens = None
        if self._acceptance.spans is not None and not batch.forward_mode.is_idle():
            root_tokens = batch.spec_info.draft_token.view(len(batch.seq_lens), -1)[:, 0]
        with self._acceptance.step(batch, self._take_proposals(batch.spec_info, batch)):
            result = super().verify(batch, *args, **kwargs)
        if root_tokens is not None:
            tokens = result.next_token_ids.view(len(root_tokens), -1)
            self._acceptance.spans.commit(batch, root_tokens, tokens, result.accept_lens - 1)
        if self._ledger is not None and result.logits_output is not None:
            outcome = StepOutcome(self._acceptance.take_outcome(), self._ledger)
            result.logits_output.auxiliary_device_output = append_auxiliary_output(
                result.logits_output.auxiliary_device_output, outcome
            )
        return result

    def _stub_skipped_draft_extend(self, batch: Any, batch_output: Any) -> None:
        """SGLang's stand-ins for a draft that was skipped (SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND), and an empty law: the
        root of the next draft counts as not proposed."""
        super()._stub_skipped_draft_extend(batch, batch_output)
        if self._sampled:
            draft_input = batch_output.next_draft_input
            draft_input.draft_probs = draft_input.topk_p.new_zeros(draft_input.topk_p.shape[0], self._drafting.record_width)

    def _take_proposals(self, verify_input: Any, batch: Any) -> Proposals | None:
        """The proposals that `patches.draft_proposals` left on the verify input, as target token ids."""
        proposals = verify_input.draft_probs
        # eagle_sample insists on a q as wide as the target's vocabulary and hands it on unread.
        vocabulary = self.target_worker.model_config.vocab_size
        if not isinstance(proposals, Proposals):
            # --speculative-adaptive with 0 steps: a root alone, which was never proposed.
            if self._sampled and proposals is None and verify_input.draft_token_num == 1:
                rows = verify_input.retrieve_index.shape[0]
                verify_input.draft_probs = torch.empty(1, device=batch.seq_lens.device).expand(rows, 1, vocabulary)
            return None
        hot_token_id = getattr(self._draft_worker, "hot_token_id", None)
        if hot_token_id is not None:
            # A reduced draft vocabulary; padding (-1, probability 0) stays outside the target's.
            mapped = hot_token_id[proposals.ids.clamp_min(0)]
            proposals = proposals._replace(ids=torch.where(proposals.ids < 0, -1, mapped))
        verify_input.draft_probs = proposals.probs.new_empty(1).expand(len(batch.seq_lens), 1, vocabulary)
        return proposals

    def _stock_sampler_checks_off(self) -> Any:
        """SGLang's chain sampler refuses trees and reduced vocabularies while a worker is built; NSD's verifier takes
        both, so its flag is read as off until the worker stands."""
        return get_spec().override(speculative_use_rejection_sampling=False)
