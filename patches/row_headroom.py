"""Room for the whole decode reserve in a request's row of KV slots.

SGLang reserves twice the length of a decode step beyond a request's last token, and makes the rows of `req_to_token` longer
than the context by the number of draft tokens and four. With page size 1 the reserve of a tree can be larger than that (3
steps of top-3 with 10 nodes: 20 and 14), and an allocation near the context limit leaves the row.

Wraps `get_req_to_token_extra_context_len()` where it is defined and where rows are sized.
"""

from __future__ import annotations


def install() -> None:
    """Widen the rows. Call before KV pools are sized."""
    from sglang.srt.mem_cache import allocation_sizing, kv_cache_configurator

    from nsd_sglang.patches.assign import assign

    stock = allocation_sizing.get_req_to_token_extra_context_len

    def get_req_to_token_extra_context_len() -> int:
        reserve = allocation_sizing.get_alloc_reserve_per_decode() + allocation_sizing.get_alloc_page_size() - 1
        return max(stock(), reserve)

    for module in (allocation_sizing, kv_cache_configurator):
        assign(module, "get_req_to_token_extra_context_len", get_req_to_token_extra_context_len)
