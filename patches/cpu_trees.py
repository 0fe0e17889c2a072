"""CPU platform: building the draft tree and the greedy walk down it.

On a platform out of tree SGLang refuses both.
"""

from __future__ import annotations

from nsd_sglang.platforms.install import Assignment
from nsd_sglang.seam import Seam

_TREE = "sglang.kernels.ops.speculative.spec_tree"
_OURS = "nsd_sglang.platforms.cpu_trees"
_EAGLE_UTILS = "sglang.srt.speculative.eagle_utils"

ASSIGNMENTS = (
    Assignment(
        Seam(
            f"{_TREE}:build_tree_kernel_efficient_func",
            "(parent_list, top_scores_index, seq_lens, tree_mask, positions, retrieve_index, retrieve_next_token, "
            "retrieve_next_sibling, topk, spec_steps, num_verify_tokens, tree_mask_mode)",
            "hook",
            "links, positions and mask of the draft tree",
        ),
        f"{_OURS}:build_tree_kernel_efficient",
        (_EAGLE_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_TREE}:verify_tree_greedy_func",
            "(predicts, accept_index, accept_token_num, candidates, retrieve_index, retrieve_next_token, "
            "retrieve_next_sibling, target_predict, topk=)",
            "hook",
            "verification at temperature 0",
        ),
        f"{_OURS}:verify_tree_greedy",
        (_EAGLE_UTILS,),
    ),
)
