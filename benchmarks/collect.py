"""From what bench_serving wrote and what the server counted to one line of ``results.jsonl``.

Words used here and in the report:

- *verify call*: one forward pass of the target after the prompt was read, counted once for every request that took part.
  Without speculation each such pass decodes one token of each request.
- *decoded tokens*: output tokens less one an answer, since the prompt's own forward pass yields the first.
- *target call*: one such forward pass of the target, counted once for the whole batch. With overlap scheduling the next pass is
  under way when an answer turns out to be complete; such a pass is a target call, but no verify call of that answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.errors import BenchError

LATENCIES = ("ttft", "tpot", "itl")


def read_raw(path: Path) -> dict[str, Any]:
    """The last line that bench_serving appended to its output file. Raises BenchError when there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, IndexError, ValueError):
        raise BenchError(f"sglang.bench_serving wrote no result to {path}") from None


def figures(arm: Arm, raw: dict[str, Any], counted: dict[str, float], num_requests: int) -> dict[str, Any]:
    """The measured part of a unit.

    raw: a line of bench_serving with its details. counted: additions to the server's counters over the unit.
    Raises BenchError when a request failed or bench_serving sent fewer than ``num_requests``.
    """
    failed = [error for error in raw["errors"] if error]
    if failed:
        raise BenchError(f"{len(failed)} of {len(raw['errors'])} requests failed, the first with: {failed[0].strip()[-400:]}")
    if not raw["completed"] == len(raw["output_lens"]) == num_requests:
        raise BenchError(
            f"sglang.bench_serving completed {raw['completed']} of {num_requests} requests; it leaves out prompts of fewer than "
            "two tokens"
        )
    output_tokens = raw["total_output_tokens"]
    decoded = output_tokens - raw["completed"]
    verify_calls = decoded if arm.kind == "plain" else round(counted.get("sglang:spec_verify_calls_total", 0))
    calls = sum(value for name, value in counted.items() if name.startswith("sglang:cuda_graph_passes_total{decode_"))
    category = "decode" if arm.kind == "plain" else "target_verify"
    seconds = counted.get(f"sglang:forward_execution_seconds_total{{{category}}}")
    rescued = counted.get("sglang:spec_nsd_rescued_tokens_total") if arm.kind == "nsd" else None
    tv_bound = counted.get("sglang:spec_nsd_tv_bound_sum") if arm.kind == "nsd" else None
    return {
        "num_requests": num_requests,
        "completed": raw["completed"],
        "duration_s": raw["duration"],
        "input_tokens": sum(raw["input_lens"]),
        "output_tokens": output_tokens,
        "output_throughput": raw["output_throughput"],
        "request_throughput": raw["request_throughput"],
        **{f"{name}_ms": _latency(raw, name) for name in LATENCIES},
        "verify_calls": verify_calls,
        "decoded_tokens": decoded,
        "accept_length": decoded / verify_calls if verify_calls else None,
        "verify_calls_per_token": verify_calls / decoded if decoded else None,
        "target_calls": round(calls),
        "target_ms_per_call": None if seconds is None or not calls else 1000.0 * seconds / calls,
        "rescued": None if rescued is None else round(rescued),
        "tv_bound": tv_bound,
        "deviation_per_token": None if tv_bound is None or not decoded else tv_bound / decoded,
    }


def _latency(raw: dict[str, Any], name: str) -> dict[str, float]:
    return {"mean": raw[f"mean_{name}_ms"], "p50": raw[f"median_{name}_ms"], "p99": raw[f"p99_{name}_ms"]}


def summary(unit: dict[str, Any]) -> str:
    """One line about a unit, for the progress display."""
    line = f"{unit['output_throughput']:.1f} tokens/s, accepted length {unit['accept_length'] or 0:.2f}"
    line += f", TTFT {unit['ttft_ms']['p50']:.0f} ms, TPOT {unit['tpot_ms']['p50']:.1f} ms"
    if unit["target_ms_per_call"] is not None:
        line += f", target {unit['target_ms_per_call']:.1f} ms a call"
    return line
