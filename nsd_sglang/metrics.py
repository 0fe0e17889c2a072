"""Prometheus metrics of the tokenizer process, under names that follow SGLang's `sglang:spec_*`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

# Upper edges of the per-answer bound: an answer's sum of total variations, from "nearly exact" to hundreds of tokens.
_BOUND_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


@lru_cache(maxsize=None)
def _collectors(label_names: tuple[str, ...]) -> dict[str, Any]:
    # Imported late: SGLang names the directory of a multi-process collection before the first import.
    from prometheus_client import Counter, Histogram

    return {
        "rescued": Counter(
            name="sglang:spec_nsd_rescued_tokens_total",
            documentation="Number of drafted tokens that only the target's nucleus accepted.",
            labelnames=label_names,
        ),
        "gated": Counter(
            name="sglang:spec_nsd_gated_nodes_total",
            documentation="Number of positions where the standard test rejected every drafted token.",
            labelnames=label_names,
        ),
        "tv_bound": Histogram(
            name="sglang:spec_nsd_tv_bound",
            documentation="Histogram of an answer's bound on its summed total variation from the target.",
            labelnames=label_names,
            buckets=_BOUND_BUCKETS,
        ),
    }


def observe(labels: dict[str, str], fields: dict[str, Any]) -> None:
    """Count one finished answer. labels: those of SGLang's own metrics; fields: `nsd_*` of its meta_info."""
    collectors = _collectors(tuple(labels))
    collectors["rescued"].labels(**labels).inc(fields["nsd_rescued"])
    collectors["gated"].labels(**labels).inc(fields["nsd_gated_nodes"])
    collectors["tv_bound"].labels(**labels).observe(fields["nsd_tv_bound"])
