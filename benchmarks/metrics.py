"""A server's counters: Prometheus text read into numbers, and what a unit added to them."""

from __future__ import annotations

import time

import requests
from prometheus_client.parser import text_string_to_metric_families

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.demo.server import ENDING_S, Server

# What the figures of a unit are made of; see collect.py. The category and mode labels tell forward passes apart.
WANTED = (
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:spec_verify_calls_total",
    "sglang:num_requests_total",
    "sglang:cuda_graph_passes_total",
    "sglang:forward_execution_seconds_total",
    "sglang:spec_nsd_rescued_tokens_total",
    "sglang:spec_nsd_gated_nodes_total",
    "sglang:spec_nsd_tv_bound_sum",
    "sglang:spec_nsd_tv_bound_count",
)
DISTINGUISHING = ("category", "mode")
SETTLE_S = 0.25
SETTLE_TRIES = 40
TIMEOUT_S = 30.0


def parse(text: str) -> dict[str, float]:
    """``{name: value}`` of the wanted samples, with ``{category}`` after a name that has that label, summed over the rest.

    Of several tensor-parallel ranks only the first counts: all of them run every forward pass.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name not in WANTED or sample.labels.get("tp_rank", "0") != "0":
                continue
            kinds = [sample.labels[label] for label in DISTINGUISHING if label in sample.labels]
            name = sample.name + "".join(f"{{{kind}}}" for kind in kinds)
            found[name] = found.get(name, 0.0) + sample.value
    return found


def read(server: Server) -> dict[str, float]:
    """The server's counters when they have come to rest: two readings in a row that agree.

    Raises BenchError when the server does not give them.
    """
    before: dict[str, float] | None = None
    for _ in range(SETTLE_TRIES):
        try:
            reply = server.http.get(f"{server.url}/metrics/", timeout=TIMEOUT_S)
            reply.raise_for_status()
        except requests.RequestException as error:
            server.check_alive(ENDING_S)
            raise BenchError(f"the {server.name} server did not give its metrics: {error}") from None
        now = parse(reply.text)
        if now == before:
            break
        before = now
        time.sleep(SETTLE_S)
    return before or {}


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What was added to each counter."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
