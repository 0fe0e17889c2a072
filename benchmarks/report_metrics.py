"""The figures of a measured unit: where each stands in a line of `results.jsonl`, its title and its unit."""

from __future__ import annotations

from dataclasses import dataclass

from nsd_sglang.benchmarks.run_files import number


@dataclass(frozen=True)
class Metric:
    """``path`` walks into the unit's line; ``over`` names a second field that divides it."""

    key: str
    title: str
    unit: str
    path: tuple[str, ...]
    over: str | None = None

    def of(self, line: dict) -> float | None:
        """The figure of one unit, None where it was not measured."""
        value: object = line
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        figure = number(value)
        if self.over is None or figure is None:
            return figure
        below = number(line.get(self.over))
        return figure / below if below else None


def _latencies() -> tuple[Metric, ...]:
    titles = {"ttft_ms": "time to first token", "tpot_ms": "time per output token", "itl_ms": "inter-token latency"}
    return tuple(
        Metric(f"{name}.{statistic}", f"{title}, {statistic}", "ms", (name, statistic))
        for name, title in titles.items()
        for statistic in ("mean", "p50", "p99")
    )


METRICS = (
    Metric("output_throughput", "output tokens/s", "tokens/s", ("output_throughput",)),
    Metric("request_throughput", "requests/s", "requests/s", ("request_throughput",)),
    *_latencies(),
    Metric("accept_length", "accepted length", "tokens per verify call", ("accept_length",)),
    Metric("verify_calls_per_token", "verify calls per output token", "calls per token", ("verify_calls_per_token",)),
    Metric("target_ms_per_call", "target time per verify call", "ms", ("target_ms_per_call",)),
    Metric("deviation_per_token", "deviation per token, bound", "total variation", ("deviation_per_token",)),
    Metric("rescued_per_token", "tokens only the gate accepted", "share of tokens", ("rescued",), "decoded_tokens"),
)
BY_KEY = {metric.key: metric for metric in METRICS}
# Whose ratio to plain decoding and to stock speculation says something; the deviation of both is zero.
RATIO_KEYS = tuple(metric.key for metric in METRICS if metric.key not in ("deviation_per_token", "rescued_per_token"))
