"""Hidden states of the target beside a standalone draft.

A standalone draft reads no hidden states, so SGLang's speculative worker forwards the target without capturing them, also for a
request with `return_hidden_states`: its answer then has none, though the server was started with
`--enable-return-hidden-states`. Here a batch with such a request is forwarded as it is without speculation.

Assigns `ForwardBatch.init_new(batch, model_runner, *, capture_hidden_mode=None, ...)`.
"""

from __future__ import annotations

from typing import Any


def install(target_runner: Any) -> None:
    """target_runner: the `ModelRunner` of the target. Call in the process that builds the worker."""
    from sglang.srt.model_executor.forward_batch_info import (
        CaptureHiddenMode,
        ForwardBatch,
        get_server_return_hidden_states_mode,
    )

    from nsd_sglang.patches.assign import assign

    stock = ForwardBatch.init_new.__func__

    def init_new(cls: type, batch: Any, model_runner: Any, *, capture_hidden_mode: Any = None, **kwargs: Any) -> Any:
        if model_runner is target_runner and capture_hidden_mode == CaptureHiddenMode.NULL and batch.return_hidden_states:
            # A verify step returns a row for every accepted node, whichever of them the request wants.
            verify = batch.forward_mode.is_target_verify()
            wanted = max(batch.return_hidden_states_mode, get_server_return_hidden_states_mode())
            capture_hidden_mode = CaptureHiddenMode.FULL if verify else wanted
        return stock(cls, batch, model_runner, capture_hidden_mode=capture_hidden_mode, **kwargs)

    assign(ForwardBatch, "init_new", classmethod(init_new))
