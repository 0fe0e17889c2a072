"""The sampling kernels that a verify step calls.

Assigns `tree_speculative_sampling_target_only` and `chain_speculative_sampling_triton` in
`sglang.srt.speculative.eagle_utils`, where `eagle_sample` looks them up by name, in the process that builds an NSD worker.
Both take the same keyword arguments: predicts, accept_index, accept_token_num (written), candidates, retrive_index,
retrive_next_token, retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs,
threshold_single, threshold_acc, deterministic.
"""

from __future__ import annotations

from typing import Callable


def install(acceptance: Callable[..., None]) -> None:
    """Let `acceptance` decide in place of both kernels."""
    from sglang.srt.speculative import eagle_utils

    from nsd_sglang.patches.assign import assign

    assign(eagle_utils, "tree_speculative_sampling_target_only", acceptance)
    assign(eagle_utils, "chain_speculative_sampling_triton", acceptance)
