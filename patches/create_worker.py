"""The worker class of a server that asked for NSD.

Hooks `SpeculativeAlgorithm.create_worker(self, server_args)`. The record's resolved algorithm is the drafter's (see
`nsd_sglang.algorithm`), so the class it returns is the one NSD subclasses.
"""

from __future__ import annotations

from typing import Any, Callable


def install() -> None:
    """Register the hook; SGLang applies it when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", create_worker, HookType.AROUND
    )


def create_worker(original: Callable[..., type], self: Any, server_args: Any) -> type:
    from nsd_sglang.algorithm import options_of, requested

    worker = original(self, server_args)
    if not requested(server_args):
        return worker
    from nsd_sglang.worker import nsd_worker_class

    return nsd_worker_class(worker, options_of(server_args))
