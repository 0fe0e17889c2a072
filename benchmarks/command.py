"""``nsd-sglang bench``: settings, then suite after suite, and a run directory that can be taken up again."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from nsd_sglang.benchmarks import arms, options, resolve, store, units
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.plan import schedule
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.console import signals_as_exit, writable
from nsd_sglang.demo.cache import DemoError, default_cache_dir

SCHEMA = 1
OUTPUT = "bench-results"
FAILURES = "failures.json"
# Suites that are modules of their own; rules may also just name arms.
MODULES = {"rules": "rules", "diagnostics": "diagnostics", "quality": "quality"}


def run(args: argparse.Namespace) -> int:
    """Run the benchmark. Returns 0, 1 when an arm failed, 2 for a bad option, 130 or 143 after Ctrl-C or SIGTERM."""
    try:
        context = prepare(args)
    except (BenchError, DemoError, OSError) as error:
        print(f"nsd-sglang bench: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return execute(context)


def execute(context: Context) -> int:
    """Run what is left of a prepared run."""
    resume = f"nsd-sglang bench --resume {context.directory}"
    context.say(f"Results go to {context.directory}; after an interruption go on with: {resume}")
    try:
        with signals_as_exit():
            for suite in context.settings.suites:
                _plan(context, suite)
            for suite in context.settings.suites:
                _run_suite(context, suite)
                # After every suite: a kill must not leave the failures of an earlier attempt standing as today's.
                store.write_json(context.directory / FAILURES, context.failed)
            _report(context)
    except (KeyboardInterrupt, SystemExit) as left:
        kept = len(context.finished())
        print(f"\nnsd-sglang bench: interrupted; {kept} finished units are kept, go on with: {resume}", file=sys.stderr, flush=True)
        return left.code if isinstance(left, SystemExit) and isinstance(left.code, int) else 130
    if context.failures:
        print(f"\nnsd-sglang bench: {len(context.failures)} failed:", file=sys.stderr)
        for failure in context.failures:
            print(f"- {failure}", file=sys.stderr)
        print(f"All other results are kept; to try these again: {resume}", file=sys.stderr, flush=True)
        return 1
    return 0


def prepare(args: argparse.Namespace) -> Context:
    """A new run directory, or the one to resume, checked and ready. Raises BenchError, DemoError or OSError."""
    given = options.given(args)
    if args.resume is not None:
        return _resumed(args, given)
    directory = (args.output or Path(OUTPUT, time.strftime("%Y%m%d-%H%M%S"))).absolute()
    if (directory / store.RUN).exists() or (directory / store.RESULTS).exists():
        raise BenchError(f"--output {directory}: there is a run in it; go on with --resume {directory}, or give another directory")
    if not writable(directory):
        raise BenchError(f"--output {directory}: give a directory that can be created and written to")
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        settings = resolve.settings(given, directory, (args.cache_dir or default_cache_dir()).absolute())
    except BaseException:
        for leftover in (directory / "prompts.jsonl",):
            leftover.unlink(missing_ok=True)
        if made:
            directory.rmdir()
        raise
    store.write_json(directory / store.RUN, description(settings, given))
    return Context(directory, settings, arms.comparison(settings))


def description(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """``run.json``. ``given`` are the options of the command line, against which those of a resumption are held."""
    from nsd_sglang.demo.report import machine, versions

    compared = arms.comparison(settings)
    ablated = arms.ablation(settings) if "ablation" in settings.suites else []
    planned = schedule("comparison", compared, settings.concurrency, settings.repeats) if "comparison" in settings.suites else []
    ruled = _rule_arms(settings)
    for suite, extra in (("ablation", ablated), ("rules", ruled)):
        planned += schedule(suite, extra, [settings.ablation_concurrency], 1)
    return {
        "schema": SCHEMA,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "machine": machine() | {"accelerator": _accelerator()},
        "seed": settings.seed,
        "model": settings.model,
        "draft": settings.draft,
        "options": given,
        "settings": settings.to_json(),
        "arms": [arm.to_json() for arm in {arm.name: arm for arm in [*compared, *ablated, *ruled]}.values()],
        "units": [dict(zip(store.UNIT_KEY, unit.key)) for unit in planned],
    }


def _resumed(args: argparse.Namespace, given: dict[str, Any]) -> Context:
    directory = args.resume.absolute()
    try:
        content = json.loads((directory / store.RUN).read_text(encoding="utf-8"))
        settings = Settings.from_json(content["settings"])
        before = content["options"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BenchError(f"--resume {directory}: there is no run of this version in it (no usable {store.RUN})") from None
    if args.output is not None and args.output.absolute() != directory:
        raise BenchError(f"--output {args.output}: a resumed run stays in its directory, {directory}; leave --output out")
    for name, value in given.items():
        if before.get(name) != value:
            option = "--" + name.replace("_", "-")
            was = f"{option} {before[name]}" if name in before else f"no {option}"
            raise BenchError(f"{option} {value}: the run in {directory} was started with {was}; leave it out to go on, or start another run")
    for option, path in (("--model", settings.model), ("--draft", settings.draft), ("--dataset-path", settings.dataset_path)):
        if path is not None and path.startswith("/") and not Path(path).exists():
            raise BenchError(f"{option} {path}: gone since the run was started")
    return Context(directory, settings, arms.comparison(settings))


def _plan(context: Context, suite: str) -> None:
    for unit in _planned(context, suite):
        context.progress.plan(unit.kind)
    module = _module(suite)
    if module is not None and hasattr(module, "steps"):
        context.progress.plan(suite, module.steps(context))


def _planned(context: Context, suite: str) -> list:
    shape = _units_of(context, suite)
    return units.planned(context, suite, *shape) if shape else []


def _units_of(context: Context, suite: str) -> tuple[list[arms.Arm], list[int], int] | None:
    """Arms, concurrencies and repeats of a suite that consists of units."""
    settings = context.settings
    if suite == "comparison":
        return context.arms, settings.concurrency, settings.repeats
    if suite == "ablation":
        return arms.ablation(settings), [settings.ablation_concurrency], 1
    if suite == "rules" and not hasattr(_module(suite), "run"):
        return _rule_arms(settings), [settings.ablation_concurrency], 1
    return None


def _rule_arms(settings: Settings) -> list[arms.Arm]:
    module = _module("rules") if "rules" in settings.suites else None
    return module.arms(settings) if hasattr(module, "arms") else []


def _run_suite(context: Context, suite: str) -> None:
    shape = _units_of(context, suite)
    if shape is not None:
        units.run(context, suite, *shape)
        return
    module = _module(suite)
    if module is not None:
        context.say(f"\nSuite {suite}")
        with context.attempt("suite", suite):
            module.run(context)


def _module(suite: str) -> ModuleType | None:
    name = f"nsd_sglang.benchmarks.{MODULES.get(suite)}"
    return importlib.import_module(name) if suite in MODULES and importlib.util.find_spec(name) else None


def _report(context: Context) -> None:
    name = "nsd_sglang.benchmarks.report"
    if importlib.util.find_spec(name) is None:
        return
    with context.attempt("report", "report"):
        for path in importlib.import_module(name).build(context.directory):
            context.say(f"Written: {path}")


def _accelerator() -> str | None:
    """Name of the first NVIDIA GPU; asked of its tool, since asking torch would take memory of the GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None
