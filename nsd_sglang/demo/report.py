"""What the demo prints and writes: one table, answers side by side, and a JSON document."""

from __future__ import annotations

import json
import math
import os
import platform
import textwrap
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from nsd_sglang.demo.measure import Arm
from nsd_sglang.demo.server import usable_cores

METRICS = {
    "output tokens/s": "tokens_per_s",
    "tokens/verify": "accepted_length",
    "verifies/token": "verify_calls_per_token",
}
PACKAGES = ("nsd-sglang", "sglang", "torch", "triton", "transformers")


def ratio(a: float, b: float) -> float:
    """``a / b``, or NaN where b is zero."""
    return a / b if b else float("nan")


def ratios(plain: Arm, stock: Arm, nsd: Arm) -> dict[str, dict[str, float]]:
    """Each metric of the speculating arms over plain decoding and over stock speculation."""
    pairs = {"stock/plain": (stock, plain), "nsd/plain": (nsd, plain), "nsd/stock": (nsd, stock)}
    return {
        attribute: {name: ratio(getattr(a, attribute), getattr(b, attribute)) for name, (a, b) in pairs.items()}
        for attribute in METRICS.values()
    }


def table(plain: Arm, stock: Arm, nsd: Arm) -> str:
    """One line per metric: its value in the three arms, then the three ratios."""
    quotients = ratios(plain, stock, nsd)
    rows = [["", plain.name, stock.name, nsd.name, "stock/plain", "NSD/plain", "NSD/stock"]]
    for title, attribute in METRICS.items():
        values = [f"{getattr(arm, attribute):.2f}" for arm in (plain, stock, nsd)]
        rows.append([title, *values, *(f"{value:.2f}x" for value in quotients[attribute].values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def side_by_side(left: str, right: str, left_title: str, right_title: str, width: int) -> str:
    """Two texts in two columns that together are at most ``width`` characters wide; line breaks of the texts are kept."""
    column = max(20, (width - 3) // 2)

    def wrapped(text: str) -> list[str]:
        lines: list[str] = []
        for line in text.expandtabs(4).strip("\n").splitlines():
            lines += textwrap.wrap(line, column, drop_whitespace=False, replace_whitespace=False) or [""]
        return lines

    lefts = [left_title[:column], "-" * column, *wrapped(left)]
    rights = [right_title[:column], "-" * column, *wrapped(right)]
    height = max(len(lefts), len(rights))
    lefts += [""] * (height - len(lefts))
    rights += [""] * (height - len(rights))
    return "\n".join(f"{a.ljust(column)} | {b}".rstrip() for a, b in zip(lefts, rights))


def explanation(settings: dict, width: int) -> str:
    """How the figures were made, in two sentences wrapped to ``width`` characters."""
    how = (
        f"Each server answered {settings['num_prompts']} HumanEval prompts, {settings['concurrency']} at a time, with at most "
        f"{settings['max_new_tokens']} tokens at temperature {settings['temperature']:g}, in bfloat16 on {usable_cores()} cores; same "
        "prompts, order and warm-up. Tokens/s is wall clock with the prompts' own passes; a verify is any later forward pass of "
        "the target, tokens/verify the mean accepted length without the token that a prompt's own pass yields."
    )
    return textwrap.fill(how, width)


def machine() -> dict[str, object]:
    """Processor, cores, memory in GiB and operating system."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "usable_cores": usable_cores(), "memory_gib": round(memory, 1), "system": platform.platform()}


def versions() -> dict[str, str | None]:
    """Python's version and those of ``PACKAGES``, None for what is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def document(settings: dict, plain: Arm, stock: Arm, nsd: Arm) -> dict:
    """Everything the run knows, ready for JSON."""
    arms = {}
    for key, arm in {"plain": plain, "stock": stock, "nsd": nsd}.items():
        totals = ("output_tokens", "decoded_tokens", "verify_calls", *METRICS.values())
        arms[key] = asdict(arm) | {total: getattr(arm, total) for total in totals}
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": settings,
        "machine": machine(),
        "versions": versions(),
        "ratios": ratios(plain, stock, nsd),
        "arms": arms,
    }


def write_json(path: Path, content: dict) -> None:
    """Write ``content`` whole or not at all; a figure that is undefined (NaN) becomes null."""
    fresh = path.with_name(path.name + ".partial")
    fresh.write_text(json.dumps(_without_nan(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(path)


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
