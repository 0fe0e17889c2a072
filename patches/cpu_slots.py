"""CPU platform: the functions that say which key-value slot a drafted token is written to.

SGLang launches Triton kernels for these, or calls the special build of its CPU engine.
"""

from __future__ import annotations

from nsd_sglang.platforms.install import Assignment
from nsd_sglang.seam import Seam

_OPS = "sglang.kernels.ops.speculative"
_OURS = "nsd_sglang.platforms.cpu_slots"
_SPEC_UTILS = "sglang.srt.speculative.spec_utils"
_EAGLE = "sglang.srt.speculative.eagle_worker_common"

ASSIGNMENTS = (
    Assignment(
        Seam(
            f"{_OPS}.cache_locs:assign_draft_cache_locs_contiguous_func",
            "(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_cols, positions=, mrope=)",
            "hook",
            "slots that the drafter writes to",
        ),
        f"{_OURS}:assign_draft_cache_locs_contiguous",
        (_EAGLE,),
    ),
    Assignment(
        Seam(
            f"{_OPS}.cache_locs:fill_front_out_cache_loc_func",
            "(num_front, out_cache_loc, front_out_cache_loc)",
            "hook",
            "where accepted tokens are moved to",
        ),
        f"{_OURS}:fill_front_out_cache_loc",
        (_SPEC_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_OPS}.eagle:fill_accept_out_cache_loc_func",
            "(accept_index, out_cache_loc, accept_out_cache_loc, size)",
            "hook",
            "where accepted tokens are moved from",
        ),
        f"{_OURS}:fill_accept_out_cache_loc",
        (_SPEC_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_OPS}.eagle:fill_bonus_tokens_func",
            "(accept_tokens, accept_lens, bonus_tokens, accept_stride, batch_size)",
            "hook",
            "last accepted token of every request",
        ),
        f"{_OURS}:fill_bonus_tokens",
        (_EAGLE,),
    ),
    Assignment(
        Seam(
            "sglang.srt.mem_cache.allocation:assign_req_to_token_pool_func",
            "(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size)",
            "hook",
            "slots reserved for the next verification",
        ),
        f"{_OURS}:assign_req_to_token_pool",
        (_SPEC_UTILS,),
    ),
    Assignment(
        Seam(
            f"{_OPS}.gather_spec_extras:gather_spec_extras",
            "(indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf)",
            "hook",
            "draft state relayed between overlapped batches",
        ),
        f"{_OURS}:gather_spec_extras",
        ("sglang.srt.managers.overlap_utils",),
    ),
)
