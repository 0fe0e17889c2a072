"""The run directory: JSON lines that survive a kill, and file names for arms."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks.errors import BenchError

RUN = "run.json"
RESULTS = "results.jsonl"
UNIT_KEY = ("suite", "arm", "concurrency", "repeat")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSON-lines file, none where there is no file.

    A last line that was cut short by a kill is left out. Raises BenchError for a broken line anywhere else.
    """
    try:
        raw = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines = []
    for number, line in enumerate(raw, 1):
        if not line.strip():
            continue
        try:
            lines.append(json.loads(line))
        except ValueError:
            if number < len(raw):
                raise BenchError(f"{path}, line {number}: this is no JSON; a run appends whole lines only") from None
    return lines


def append_line(path: Path, content: dict[str, Any]) -> None:
    """Append one line and return when it is on the disk. A half-written last line is cut off first."""
    with open(path, "a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            if whole < end:
                file.truncate(whole)
        file.write(json.dumps(content).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` whole or not at all."""
    fresh = path.with_name(path.name + ".partial")
    fresh.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def slug(*words: object) -> str:
    """A file name made of letters, digits, dots and dashes: ``NSD 0.95 top-k`` becomes ``nsd-0.95-top-k``."""
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(map(str, words)).lower()).strip("-.")
