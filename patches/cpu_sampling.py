"""CPU platform: renormalised probabilities, seeded coins, and stock verification by sampling.

Off CUDA SGLang has None for the renormalisations and the tree verifier, and Triton for the rest.
"""

from __future__ import annotations

from nsd_sglang.platforms.install import Assignment
from nsd_sglang.seam import Seam

_SPECULATIVE = "sglang.kernels.ops.speculative"
_SAMPLING = "sglang.kernels.ops.sampling"
_EAGLE_UTILS = "sglang.srt.speculative.eagle_utils"
_PROBS = "nsd_sglang.platforms.cpu_sampling"
_VERIFY = "nsd_sglang.platforms.cpu_verify"

ASSIGNMENTS = (
    Assignment(
        Seam(f"{_SAMPLING}.renorm:top_k_renorm_prob", "name", "hook", "top-k before verification"),
        f"{_PROBS}:top_k_renorm_prob",
        (_EAGLE_UTILS,),
    ),
    Assignment(
        Seam(f"{_SAMPLING}.renorm:top_p_renorm_prob", "name", "hook", "top-p before verification"),
        f"{_PROBS}:top_p_renorm_prob",
        (_EAGLE_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_SAMPLING}.murmur_hash:murmur_hash32",
            "(seed, positions, col_indices)",
            "hook",
            "coins of requests with a sampling seed",
        ),
        f"{_PROBS}:murmur_hash32",
        ("sglang.srt.layers.sampler",),
    ),
    Assignment(
        Seam(
            "sglang.srt.batch_invariant_ops.batch_invariant_ops:enable_batch_invariant_mode",
            "(enable_bmm=)",
            "hook",
            "--enable-deterministic-inference without kernels",
        ),
        f"{_PROBS}:enable_batch_invariant_mode",
        ("sglang.srt.batch_invariant_ops",),
    ),
    Assignment(
        Seam(f"{_SPECULATIVE}.row_argmax:row_argmax", "(x)", "hook", "draws of the drafter"),
        f"{_PROBS}:row_argmax",
        ("sglang.srt.speculative.spec_utils",),
    ),
    Assignment(
        Seam(
            f"{_SPECULATIVE}.verify_sampling:tree_speculative_sampling_target_only",
            "name",
            "hook",
            "stock verification of a tree by sampling",
        ),
        f"{_VERIFY}:tree_speculative_sampling_target_only",
        (_EAGLE_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_SPECULATIVE}.verify_sampling:chain_speculative_sampling_triton",
            "name",
            "hook",
            "stock rejection sampling of a chain",
        ),
        f"{_VERIFY}:chain_speculative_sampling",
        (_EAGLE_UTILS,),
    ),
    # The definition of the name above, whose signature the replacement follows.
    Assignment(
        Seam(
            f"{_SPECULATIVE}.reject_sampling:chain_speculative_sampling_triton",
            "(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, "
            "retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, "
            "threshold_single, threshold_acc, deterministic, *, block_verification=)",
            "hook",
            "stock rejection sampling of a chain",
        ),
        f"{_VERIFY}:chain_speculative_sampling",
    ),
)
