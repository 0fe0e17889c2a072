"""Sampling inputs at every node of a verify step.

Assigns `eagle_sample` in `sglang.srt.speculative.eagle_worker_common`, where `run_eagle_verify` looks it up by name, in the
process that builds an NSD worker. Signature: `(verify_input, batch, logits_output, grammar_mask=None,
uno_target_max_top_k=None, *, watermark_state=None, watermark_full_mask=True)`.
"""

from __future__ import annotations

from typing import Any

from nsd_sglang.node_logits import NodeLogits


def install(node_logits: NodeLogits) -> None:
    """Let `node_logits` stand around SGLang's `eagle_sample`."""
    from sglang.srt.speculative import eagle_utils, eagle_worker_common

    from nsd_sglang.patches.assign import assign

    stock = eagle_utils.eagle_sample

    def eagle_sample(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None, *args: Any, **rest: Any):
        if args:
            rest["uno_target_max_top_k"] = args[0]
        return node_logits.sample(stock, verify_input, batch, logits_output, grammar_mask, **rest)

    assign(eagle_worker_common, "eagle_sample", eagle_sample)
