"""A run directory made up for the report's tests: no server, every file of a finished run, figures from a seeded generator."""

from __future__ import annotations

import json
import random
from pathlib import Path

SHAPE = {"num_steps": 4, "topk": 3, "num_draft_tokens": 12}


def arm(name: str, kind: str, threshold: float | None = None, **fields: object) -> dict:
    """An entry of run.json's arms."""
    shape = dict.fromkeys(SHAPE) if kind == "plain" else SHAPE
    algorithm = {"plain": None, "stock": "EAGLE", "nsd": "NSD"}[kind]
    known = {"algorithm": algorithm, "threshold": threshold, "proposals": None if kind == "plain" else "topk", "gate": None}
    return {"name": name, "kind": kind, **known, **shape, "server_arguments": ["--model-path", "m", "--port", "1"], **fields}


def unit(suite: str, arm: str, concurrency: int, repeat: int, tokens_per_s: float, **fields: object) -> dict:
    """A line of results.jsonl, consistent in itself."""
    length = float(fields.pop("accept_length", 1.0))
    decoded, requests = 1900, 20
    bound = fields.get("tv_bound")
    latency = 1000 * concurrency / tokens_per_s
    return {
        "suite": suite,
        "arm": arm,
        "concurrency": concurrency,
        "repeat": repeat,
        "command": ["python", "-m", "sglang.bench_serving", "--max-concurrency", str(concurrency)],
        "raw": f"raw/{suite}-{repeat}.jsonl",
        "startup_s": 20.0,
        "warm_up_requests": 2,
        "num_requests": requests,
        "completed": requests,
        "duration_s": (decoded + requests) / tokens_per_s,
        "input_tokens": 3000,
        "output_tokens": decoded + requests,
        "output_throughput": tokens_per_s,
        "request_throughput": requests * tokens_per_s / (decoded + requests),
        "ttft_ms": {"mean": 120.0 * concurrency, "p50": 110.0 * concurrency, "p99": 300.0 * concurrency},
        "tpot_ms": {"mean": latency, "p50": 0.97 * latency, "p99": 1.6 * latency},
        "itl_ms": {"mean": latency, "p50": 0.9 * latency, "p99": 3.1 * latency},
        "verify_calls": round(decoded / length),
        "decoded_tokens": decoded,
        "accept_length": length,
        "verify_calls_per_token": 1 / length,
        "target_calls": round(decoded / length / concurrency),
        "target_ms_per_call": latency * length * 0.7,
        "rescued": None,
        "tv_bound": None,
        "deviation_per_token": None if bound is None else float(bound) / decoded,
        **fields,
    }


def nsd(threshold: float, length: float) -> dict:
    """Fields of an NSD unit: accepted length, rescues and bound grow with the threshold."""
    return {"accept_length": length, "rescued": int(1900 * 0.25 * threshold), "tv_bound": 1900 * 0.45 * threshold**2}


def full_run(directory: Path, *, repeats: int = 3, concurrencies: tuple[int, ...] = (1, 8, 32), seed: int = 7) -> Path:
    """Write a finished run with every suite."""
    chance = random.Random(seed)
    thresholds = (0.8, 0.9, 0.95, 0.99)
    arms = [arm("plain", "plain"), arm("stock EAGLE top-k", "stock")]
    arms += [arm(f"NSD {t:g} top-k", "nsd", t) for t in thresholds]
    rules = ("greedy margin", "additive", "multiplicative", "top-m", "typical")
    arms += [arm(f"rule: {rule}", "nsd", None, gate=rule) for rule in rules]
    arms += [
        arm(f"{steps} steps, NSD {t:g}", "nsd", t, num_steps=steps, topk=1, num_draft_tokens=steps + 1)
        for steps in (2, 4, 6)
        for t in (0.0, 0.8, 0.9, 0.95)
    ]
    units = []
    for repeat in range(repeats):
        for c in concurrencies:
            base = 30 * c**0.7
            noise = lambda: 1 + chance.gauss(0, 0.015)  # noqa: E731
            units.append(unit("comparison", "plain", c, repeat, base * noise()))
            units.append(unit("comparison", "stock EAGLE top-k", c, repeat, base * 1.35 * noise() / c**0.05, accept_length=1.9 * noise()))
            for t in thresholds:
                gain = 1 + 0.7 * t**4
                units.append(unit("comparison", f"NSD {t:g} top-k", c, repeat, base * 1.33 * gain * noise() / c**0.05, **nsd(t, 1.9 * gain * noise())))
        for name, speed in (("plain", 60), *((f"rule: {rule}", 80 + 9 * i) for i, rule in enumerate(rules))):
            units.append(unit("rules", name, 4, repeat, speed * noise(), **({} if name == "plain" else nsd(speed / 120, speed / 50))))
        units.append(unit("ablation", "plain", 4, repeat, 60 * noise()))
        for steps in (2, 4, 6):
            for t in (0.0, 0.8, 0.9, 0.95):
                gain = (1 + 0.1 * steps) * (1 + 0.12 * steps * t**3) * (0.98 if steps == 6 else 1)
                units.append(unit("ablation", f"{steps} steps, NSD {t:g}", 4, repeat, 60 * gain * noise(), **nsd(t, 1.3 * gain)))
    run = {
        "schema": 1,
        "command": ["nsd-sglang", "bench", "--output", "DIR with spaces"],
        "started": "2026-01-02T03:04:05+00:00",
        "versions": {"python": "3.11.9", "sglang": "0.5.23", "nsd-sglang": "0.1.0"},
        "machine": {"cpu": "a processor", "usable_cores": 2, "memory_gib": 24.0},
        "seed": 7,
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "draft": "eagle",
        "settings": {"temperature": 1.0, "num_prompts": 20},
        "arms": arms,
        "units": [[u["suite"], u["arm"], u["concurrency"], u["repeat"]] for u in units],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(run))
    write_lines(directory / "results.jsonl", units)
    write_lines(directory / "quality.jsonl", quality_lines(chance))
    (directory / "diagnostics.json").write_text(json.dumps({"arms": {"NSD 0.95 top-k": diagnostics(0.55), "NSD 0.8 top-k": diagnostics(0.4)}}))
    (directory / "raw").mkdir(exist_ok=True)
    for repeat in range(repeats):
        (directory / f"raw/comparison-{repeat}.jsonl").write_text("{}\n")
    return directory


def quality_lines(chance: random.Random) -> list[dict]:
    """24 prompts, two arms of text and of HumanEval each, two samples a prompt."""
    words = "the a model draws tokens from its own law and keeps what it likes best".split()
    lines = []
    for suite in ("quality", "humaneval"):
        for name, shift in (("plain", 0.0), ("stock EAGLE top-k", 0.0), ("NSD 0.95 top-k", 0.12)):
            for prompt in range(24):
                for sample in range(2):
                    tokens = chance.randrange(40, 96)
                    line = {
                        "suite": suite,
                        "arm": name,
                        "prompt": prompt,
                        "sample": sample,
                        "text": " ".join(chance.choices(words, k=tokens)),
                        "tokens": tokens,
                        "logprob": tokens * (-1.6 + shift + chance.gauss(0, 0.2)),
                        "entropy": tokens * (1.6 - shift + chance.gauss(0, 0.1)),
                        "finish": chance.choice(["stop", "length"]),
                        "passed": chance.random() < 0.2 if suite == "humaneval" else None,
                        "rescued": int(tokens * shift) if shift else None,
                        "tv_bound": tokens * shift * 2 if shift else None,
                        "seconds": tokens / 50,
                        "distinct_1": 0.7 + chance.gauss(0, 0.05) - shift,
                        "distinct_2": min(1.0, 0.92 + chance.gauss(0, 0.03) - shift),
                        "distinct_3": 0.99,
                    }
                    lines.append(line)
    return lines


def diagnostics(inside: float) -> dict:
    """The diagnostics of one arm."""
    ranks = [round(4000 / rank**1.3) for rank in range(1, 21)] + [900]
    return {
        "steps": 5200,
        "nodes": 18000,
        "rejected": sum(ranks),
        "rejected_in_nucleus": inside,
        "rank_histogram": ranks,
        "rejected_in_top_ten": 0.8,
        "rescues_in_core": 0.61,
        "target_entropy": {"accepted": 0.9, "rescued": 2.2, "rejected": 2.6},
        "draft_entropy": {"accepted": 1.4, "rescued": 2.5, "rejected": 2.8},
        "e_s_by_depth": [inside * 0.5, inside * 0.48, inside * 0.47, None],
        "r_by_depth": [0.58, 0.6, 0.63, 0.66],
        "acceptance_by_depth": [0.7, 0.68, 0.65, 0.6],
        "sd_acceptance_by_depth": [0.42, 0.4, 0.37, 0.34],
        "kl_by_depth": [1.1, 1.3, 1.4, 1.6],
        "kl_certificates": {
            "nucleus theta=0.95": {"certificate_nats": 0.31, "share_below": 0.2},
            "never rejects": {"certificate_nats": None, "share_below": 1.0},
        },
    }


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
