"""What NSD did to an answer, as the client reads it.

In the tokenizer process, hooks
- `TokenizerManager.update_request_meta_info(self, meta_info, state, customized_info, index, finish_reason)`: what the
  scheduler sent along becomes `meta_info.nsd_*` (SGLang would append it to a list, chunk by chunk), and metrics;
- `spec_tokens_details_from_meta_info(meta_info)` in `sglang.srt.entrypoints.openai.utils`: the same fields among the
  details that `return_spec_tokens_details` adds to an OpenAI response.

In the scheduler process, assigns
- `Scheduler.get_output_streamer_class(self)`: the streamer that sends them;
- `SchedulerMetricsReporter.report_decode_stats(self, ...)`: one more line wherever SGLang logs its decode statistics.
"""

from __future__ import annotations

import logging
from typing import Any, Callable

from nsd_sglang.options import NSDOptions

logger = logging.getLogger(__name__)


def install() -> None:
    """Register the tokenizer process's hooks; SGLang applies them when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        update_request_meta_info,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.entrypoints.openai.utils.spec_tokens_details_from_meta_info",
        spec_tokens_details_from_meta_info,
        HookType.AROUND,
    )


def update_request_meta_info(
    original: Callable[..., None],
    self: Any,
    meta_info: dict,
    state: Any,
    customized_info: dict,
    index: int,
    finish_reason: Any,
) -> None:
    from nsd_sglang.report_channel import CHANNEL, answer_fields

    entries = customized_info.get(CHANNEL)
    rest = {key: values for key, values in customized_info.items() if key != CHANNEL}
    if rest:
        original(self, meta_info, state, rest, index, finish_reason)
    if entries is None:
        return
    fields = answer_fields(entries[index])
    meta_info.update(fields)
    if finish_reason is not None and self.enable_metrics:
        from nsd_sglang.metrics import observe

        observe(self.metrics_collector.labels, fields)


def spec_tokens_details_from_meta_info(original: Callable[..., Any], meta_info: dict) -> Any:
    from nsd_sglang.report_channel import with_answer_fields

    return with_answer_fields(original(meta_info), meta_info)


def install_scheduler(options: NSDOptions, ledger: Any) -> None:
    """In the process that builds an NSD worker. ledger: the worker's `Ledger`."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.metrics_reporter import SchedulerMetricsReporter

    from nsd_sglang.patches.assign import assign
    from nsd_sglang.report import nsd_streamer_class
    from nsd_sglang.tokenizer_workers import answers_unpacked

    stock_class = Scheduler.get_output_streamer_class
    stock_report = SchedulerMetricsReporter.report_decode_stats

    def get_output_streamer_class(self: Any) -> type:
        # SGLang's Rust egress takes no fields of a plugin, nor do tokenizer workers with an application of their own.
        if self.rust_server is not None or not answers_unpacked(self.server_args):
            return stock_class(self)
        return nsd_streamer_class(options)

    def report_decode_stats(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_report(self, *args, **kwargs)
        if self.forward_ct_decode % self.decode_log_interval == 0 and self.is_stats_logging_rank:
            line = ledger.log_line()
            if line is not None:
                logger.info(line)

    assign(Scheduler, "get_output_streamer_class", get_output_streamer_class)
    assign(SchedulerMetricsReporter, "report_decode_stats", report_decode_stats)
