"""Overlap scheduling of speculative decoding on our CPU platform.

Hooks `_disable_overlap_schedule_for_cpu(server_args)` in `sglang.srt.arg_groups.speculative_hook`, which turns overlap
scheduling off by the name of the device, because SGLang's own CPU engine lacks it. Our platform has it, for stock
speculation and NSD alike: a comparison of the two would otherwise measure the scheduler.
"""

from __future__ import annotations

from typing import Any, Callable


def install() -> None:
    """Register the hook; SGLang applies it when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu", keep_overlap, HookType.AROUND
    )


def keep_overlap(original: Callable[[Any], None], server_args: Any) -> None:
    from sglang.srt.platforms import current_platform

    from nsd_sglang.platforms.cpu import CpuPlatform

    if not isinstance(current_platform, CpuPlatform):
        original(server_args)
