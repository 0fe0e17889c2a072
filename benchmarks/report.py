"""Build what a person looks at: `report.html`, the pictures and `summary.json`, from a run directory in any state."""

from __future__ import annotations

import base64
import json
import shlex
from pathlib import Path
from urllib.parse import quote

import jinja2

from nsd_sglang.benchmarks import figures, paper, stats
from nsd_sglang.benchmarks.diagnostic_tables import depth_table, diagnostics_table, paper_table
from nsd_sglang.benchmarks.run_files import RunFiles, read
from nsd_sglang.benchmarks.summary import summarise
from nsd_sglang.benchmarks.tables import headline, line_table, quality_table, suite_tables

TEMPLATES = Path(__file__).with_name("templates")
ABLATION_KEYS = ("output_throughput", "accept_length", "verify_calls_per_token", "deviation_per_token", "rescued_per_token")
QUALITY_ROWS = {
    "logprob_per_token": "log-likelihood per token",
    "entropy_per_token": "target entropy per token",
    "outside_per_token": "tokens that the target's top-k or top-p had cut",
    "tokens_per_answer": "tokens per answer",
    "stopped": "answers that ended by themselves",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "distinct_3": "distinct-3",
    "deviation_per_token": "deviation per token, bound",
    "rescued_per_token": "tokens only the gate accepted",
}
HUMANEVAL_ROWS = {"passed": "pass@1", **QUALITY_ROWS}
# Linked where they are there; everything under raw/ and traces/ too.
LINKED = ("run.json", "results.jsonl", "quality.jsonl", "diagnostics.json", "summary.json")


def build(directory: Path) -> list[Path]:
    """Write `summary.json`, the pictures that have figures and `report.html` into a run directory, each whole or not at all.

    Returns:
        The files written, the report last.

    Raises:
        BenchError: the directory is not one that `nsd-sglang bench` has written.
    """
    directory = Path(directory)
    files = read(directory)
    summary = summarise(files)
    written = [_write(directory / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")]
    written += figures.draw_all(summary, directory)
    return [*written, _write(directory / "report.html", _html(files, summary))]


def _html(files: RunFiles, summary: dict) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    groups = summary["groups"]
    suites = {group["suite"] for group in groups}
    return environment.get_template("report.html.j2").render(
        run=dict.fromkeys(("model", "draft", "seed", "started", "versions", "machine", "settings")) | files.run,
        summary=summary,
        css=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        headline=headline(summary),
        comparison=suite_tables(summary, "comparison"),
        ablation=line_table(summary, "ablation", ABLATION_KEYS),
        rules=line_table(summary, "rules", ABLATION_KEYS),
        rules_quality=quality_table(summary, "rules", QUALITY_ROWS),
        others=[(suite, suite_tables(summary, suite)) for suite in sorted(suites - {"comparison", "ablation", "rules"})],
        diagnostics=diagnostics_table(summary),
        depths=depth_table(summary),
        quality=quality_table(summary, "quality", QUALITY_ROWS),
        humaneval=quality_table(summary, "humaneval", HUMANEVAL_ROWS),
        paper=paper,
        paper_table=paper_table(summary),
        pictures={path.stem: _picture(path) for path in (files.directory / name for name in figures.PICTURES) if path.is_file()},
        arms=[{"name": name, "arguments": _command(arm.get("server_arguments"))} for name, arm in files.arms.items()],
        command=_command(files.run.get("command")),
        unit_commands=[(_unit_name(key), _command(unit.get("command"))) for key, unit in files.units.items()],
        unfinished=[_unit_name(key) for key in files.unfinished],
        failed=[_failure(entry) for entry in summary["failed"]],
        few=min((len(group["repeats"]) for group in groups), default=0),
        most=max((len(group["repeats"]) for group in groups), default=0),
        method=stats.METHOD,
        level=f"{stats.LEVEL:.0%}",
        links=_links(files.directory),
        facts=_facts,
    )


def _facts(value: object) -> list[tuple[str, str]]:
    """A dictionary from outside as pairs of texts, nested ones as JSON."""
    if not isinstance(value, dict):
        return []
    return [(str(k), v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in value.items()]


def _command(argv: object) -> str:
    return shlex.join(map(str, argv)) if isinstance(argv, list) else str(argv or "")


def _unit_name(key: tuple | str) -> str:
    if isinstance(key, str):
        return key
    suite, arm, concurrency, repeat = key
    return f"{suite}: {arm}, concurrency {concurrency}, repeat {repeat}"


def _failure(entry: dict) -> str:
    names = {"suite": "", "arm": "", "concurrency": "concurrency ", "repeat": "repeat "}
    known = [f"{title}{entry[name]}" for name, title in names.items() if entry[name] is not None]
    return ": ".join(filter(None, (", ".join(known), entry["error"])))


def _picture(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _links(directory: Path) -> list[tuple[str, str]]:
    """(text, relative address) of the files behind the report; names come from the directory itself, not from what it says."""
    paths = [directory / name for name in LINKED]
    for folder in ("raw", "traces", "logs"):
        paths += sorted(path for path in (directory / folder).glob("*") if path.is_file())
    names = [path.relative_to(directory).as_posix() for path in paths if path.is_file()]
    return [(name, quote(name)) for name in names]


def _write(path: Path, text: str) -> Path:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8", errors="replace")  # a lone surrogate from a damaged file is not worth a report
    partial.replace(path)
    return path
