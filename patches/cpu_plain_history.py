"""CPU platform: plain decoding draws each token with the whole answer before it in view.

Under overlap scheduling SGLang prepares a decode step before it has processed the step before, so that the penalties of
plain decoding lack the last token (the first step penalises the prompt's last one instead), and a custom logit processor reads
`output_ids` that lack it too. Both are right with `--disable-overlap-schedule`, and in NSD's verify step. On this platform,
where a forward pass has ended by then, plain decoding is made right as well, so that the three agree.

Hooks, for plain decode batches on this platform only:
- `ScheduleBatch.cumulate_penalty_output_tokens(self)`: nothing yet;
- `Scheduler.run_batch(self, batch, pp_proxy_tensors=None)`: counts the token that the forward pass is about to read;
- `Scheduler.is_disable_overlap_for_batch(self, batch, last_batch)`: true for a batch with custom logit processors.
"""

from __future__ import annotations

from typing import Any, Callable


def install() -> None:
    """Register the hooks; SGLang applies them when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in (
        ("sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens", count_later),
        ("sglang.srt.managers.scheduler.Scheduler.run_batch", count_first),
        ("sglang.srt.managers.scheduler.Scheduler.is_disable_overlap_for_batch", process_first),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)


def count_later(original: Callable[..., None], batch: Any) -> None:
    if not _lags(batch):
        original(batch)


def count_first(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    if _lags(batch) and batch.forward_mode.is_decode() and batch.sampling_info.penalizer_orchestrator.is_required:
        drawn = scheduler.future_map.output_tokens_buf[batch.req_pool_indices]
        batch.sampling_info.penalizer_orchestrator.cumulate_output_tokens(drawn.long())
    return original(scheduler, batch, *args, **kwargs)


def process_first(original: Callable[..., bool], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> bool:
    reads_history = (
        batch is not None
        and _lags(batch)
        and batch.forward_mode.is_decode()
        and batch.sampling_info.has_custom_logit_processor
        and len(scheduler.result_queue) > 0
    )
    return original(scheduler, batch, *args, **kwargs) or reads_history


def _lags(batch: Any) -> bool:
    from sglang.srt.platforms import current_platform

    from nsd_sglang.platforms.cpu import CpuPlatform

    return batch.enable_overlap and batch.spec_algorithm.is_none() and isinstance(current_platform, CpuPlatform)
