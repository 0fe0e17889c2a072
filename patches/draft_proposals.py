"""Where SGLang's draft draws its proposals and hands them to verification.

Assigns names that `sglang.srt.speculative.eagle_worker_v2` looks up in its own module, in the process that builds an NSD
worker with sampled proposals:

- `renorm_draft_probs(next_token_logits, sampling_info, use_rejection_sampling)` and `fast_sample(probs, num_samples=1, *,
  sampling_seed, positions, draft_step)`: the root's law and children after a prefill;
- `sample_draft_proposal(next_token_logits, temperatures, top_ks, *, sampling_seed, positions, draft_step)`: law and
  children of every later node (and of the root after a verify step, with draft_step 0);
- `build_eagle_verify_input(batch, draft_input, parent_list, top_scores_index, draft_tokens, draft_probs, ...)`: the last
  place that knows which recorded law belongs to which node.

And `EagleDraftInputBuffers` in `eagle_draft_cuda_graph_runner`, whose `draft_probs` buffer SGLang makes as wide as the
vocabulary: graph replay copies the root's record into it.
"""

from __future__ import annotations

from typing import Any

from nsd_sglang.drafting import SampledDrafting


def install(drafting: SampledDrafting) -> None:
    """Let `drafting` draw and record in place of SGLang's sampler."""
    from sglang.srt.speculative import eagle_draft_cuda_graph_runner, eagle_worker_v2

    from nsd_sglang.patches.assign import assign

    stock_renorm = eagle_worker_v2.renorm_draft_probs
    stock_build = eagle_worker_v2.build_eagle_verify_input
    stock_buffers = eagle_draft_cuda_graph_runner.EagleDraftInputBuffers

    def renorm_draft_probs(next_token_logits: Any, sampling_info: Any, use_rejection_sampling: bool) -> Any:
        if not use_rejection_sampling:  # an all-greedy batch drafts by top-k
            return stock_renorm(next_token_logits, sampling_info, use_rejection_sampling)
        law = drafting.law(next_token_logits, sampling_info.temperatures, sampling_info.top_ks)
        return drafting.record(law, law.shape[0])

    def fast_sample(
        probs: Any, num_samples: int = 1, *, sampling_seed: Any = None, positions: Any = None, draft_step: int = 0
    ) -> tuple[Any, Any]:
        law = probs[:, : 2 * drafting.candidates].reshape(-1, 2, drafting.candidates)
        return drafting.draw(law, sampling_seed=sampling_seed, positions=positions, draft_step=draft_step)

    def sample_draft_proposal(
        next_token_logits: Any,
        temperatures: Any,
        top_ks: Any = None,
        *,
        sampling_seed: Any = None,
        positions: Any = None,
        draft_step: int = 0,
    ) -> tuple[Any, Any, Any]:
        law = drafting.law(next_token_logits, temperatures, top_ks)
        scores, tokens = drafting.draw(law, sampling_seed=sampling_seed, positions=positions, draft_step=draft_step)
        return drafting.record(law, temperatures.shape[0]), scores, tokens

    def build_eagle_verify_input(
        batch: Any,
        draft_input: Any,
        parent_list: Any,
        top_scores_index: Any,
        draft_tokens: Any,
        draft_probs: Any,
        **kwargs: Any,
    ) -> Any:
        verify_input = stock_build(batch, draft_input, parent_list, top_scores_index, draft_tokens, None, **kwargs)
        if draft_probs is not None and not batch.forward_mode.is_idle():
            verify_input.draft_probs = drafting.proposals(draft_probs, parent_list, top_scores_index)
        return verify_input

    class EagleDraftInputBuffers(stock_buffers):
        def __init__(self, *, draft_probs: Any, **fields: Any) -> None:
            if draft_probs is not None:
                draft_probs = draft_probs.new_zeros(draft_probs.shape[0], drafting.record_width)
            super().__init__(draft_probs=draft_probs, **fields)

    for replacement in (renorm_draft_probs, fast_sample, sample_draft_proposal, build_eagle_verify_input):
        assign(eagle_worker_v2, replacement.__name__, replacement)
    assign(eagle_draft_cuda_graph_runner, "EagleDraftInputBuffers", EagleDraftInputBuffers)
