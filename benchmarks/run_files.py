"""Read a run directory as it is found: finished, interrupted or damaged.

Only `run.json` must be there. A line of `results.jsonl` or `quality.jsonl` that is not JSON (a write cut short) is left out
and counted; a number that is not finite counts as not measured.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from nsd_sglang.benchmarks.errors import BenchError

Key = tuple[str, str, int, int]


@dataclass
class RunFiles:
    """What a run directory holds.

    Attributes:
        run: `run.json`.
        units: finished units by (suite, arm, concurrency, repeat), in the order they finished; a repeated key keeps the last.
        failures: lines of `results.jsonl` that carry an error instead of figures, and entries of `failures.json` (texts, or objects
            with ``error``), unless a later try went through.
        planned: unit keys of the schedule, as (suite, arm, concurrency, repeat) where they say so, else as they are written.
        quality: lines of `quality.jsonl`.
        diagnostics: the arms of `diagnostics.json`.
        problems: what was left out and why, one line each.
    """

    directory: Path
    run: dict
    units: dict[Key, dict] = field(default_factory=dict)
    failures: list[dict] = field(default_factory=list)
    planned: list[Key | str] = field(default_factory=list)
    quality: list[dict] = field(default_factory=list)
    diagnostics: dict[str, dict] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def arms(self) -> dict[str, dict]:
        """Arms by name: those of `run.json` in its order, then any that only the results name."""
        named = {str(arm.get("name")): arm for arm in _dicts(self.run.get("arms"))}
        for _, arm, _, _ in self.units:
            named.setdefault(arm, {"name": arm})
        return named

    @property
    def unfinished(self) -> list[Key | str]:
        """Planned units without a result, in the order of the schedule."""
        written = {str(unit.get("key", Path(str(unit.get("raw", ""))).stem)) for unit in self.units.values()}
        return [key for key in self.planned if key not in self.units and key not in written]


def read(directory: Path) -> RunFiles:
    """Read the files of a run.

    Raises:
        BenchError: no such directory, or its `run.json` is missing or unreadable.
    """
    if not directory.is_dir():
        raise BenchError(f"{directory} is not a directory: report takes one that nsd-sglang bench has written")
    path = directory / "run.json"
    try:
        run = _clean(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist: report takes a directory that nsd-sglang bench has written") from None
    except (OSError, ValueError) as problem:
        raise BenchError(f"{path} cannot be read: {problem}") from None
    if not isinstance(run, dict):
        raise BenchError(f"{path} does not hold a JSON object")
    files = RunFiles(directory, run, planned=[_planned(key) for key in run.get("units") or []])
    for line in _lines(files, "results.jsonl"):
        key = _key(line)
        if line.get("error") is not None:
            files.failures.append(line)
        elif key is None:
            files.problems.append("results.jsonl: a line without suite, arm, concurrency and repeat was left out")
        else:
            files.units[key] = line
    files.failures += [line if isinstance(line, dict) else {"error": line} for line in _json(files, "failures.json", list) or []]
    files.failures = [line for line in files.failures if isinstance(line.get("error"), str) and not _made_good(files, line)]
    files.quality = _lines(files, "quality.jsonl")
    files.diagnostics = _diagnostics(files)
    return files


def number(value: object) -> float | None:
    """``value`` as a float where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer past every float
        return None


def _key(fields: dict) -> Key | None:
    suite, arm, concurrency, repeat = (fields.get(name) for name in ("suite", "arm", "concurrency", "repeat"))
    if suite is None or arm is None or number(concurrency) is None or number(repeat) is None:
        return None
    return str(suite), str(arm), int(concurrency), int(repeat)


def _planned(key: object) -> Key | str:
    fields = key
    if isinstance(key, list) and len(key) == 4:
        fields = dict(zip(("suite", "arm", "concurrency", "repeat"), key))
    return (isinstance(fields, dict) and _key(fields)) or str(key)


def _lines(files: RunFiles, name: str) -> list[dict]:
    path = files.directory / name
    if not path.is_file():
        return []
    rows, broken = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = _clean(json.loads(line)) if line.strip() else None
        except ValueError:
            row = "broken"
        if isinstance(row, dict):
            rows.append(row)
        elif row is not None:
            broken += 1
    if broken:
        files.problems.append(f"{name}: {broken} line(s) that are not whole JSON objects were left out")
    return rows


def _made_good(files: RunFiles, failure: dict) -> bool:
    """Whether a later try went through: the unit has finished, or all units of the arm that failed as a whole."""
    if _key(failure) is not None:
        return _key(failure) in files.units
    where = failure.get("suite"), failure.get("arm")
    return where in {key[:2] for key in files.units} and where not in {key[:2] for key in files.unfinished}


def _json(files: RunFiles, name: str, kind: type) -> object:
    """The content of an optional file; None, with an entry in ``problems``, where it is not what it should be."""
    path = files.directory / name
    if not path.is_file():
        return None
    try:
        content = _clean(json.loads(path.read_text(encoding="utf-8")))
        if isinstance(content, kind):
            return content
        problem: object = f"it does not hold a JSON {'object' if kind is dict else 'array'}"
    except (OSError, ValueError) as error:
        problem = error
    files.problems.append(f"{name} was left out: {problem}")
    return None


def _diagnostics(files: RunFiles) -> dict[str, dict]:
    arms = (_json(files, "diagnostics.json", dict) or {}).get("arms")
    if arms is not None and not isinstance(arms, dict):
        files.problems.append("diagnostics.json was left out: its arms are not an object")
        return {}
    return {str(name): arm for name, arm in (arms or {}).items() if isinstance(arm, dict)}


def _dicts(values: object) -> list[dict]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _clean(value: object) -> object:
    """``value`` with null in place of NaN and infinities, which JSON itself does not have."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
