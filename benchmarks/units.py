"""Measuring units: a fresh server for every arm and repeat, warmed up, loaded by bench_serving, and its counters read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks import collect, load, metrics, store
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.load import LoadMaker
from nsd_sglang.benchmarks.plan import Unit, schedule, servers
from nsd_sglang.demo.server import Server

BENCH_SERVING = ["python", "-m", "sglang.bench_serving"]


def planned(context: Context, suite: str, arms: list[Arm], concurrencies: list[int], repeats: int) -> list[Unit]:
    """The units of a suite that have not been measured yet, in order."""
    units = schedule(suite, arms, concurrencies, repeats)
    return [unit for group in servers(units, context.finished()) for unit in group]


def run(context: Context, suite: str, arms: list[Arm], concurrencies: list[int], repeats: int = 1) -> None:
    """Measure what is left of ``suite`` and append a line for every unit to ``results.jsonl``.

    An arm whose server does not start, or that fails in a unit, goes into ``context.failures`` and is left out from then on;
    its finished units and all other arms are kept.
    """
    by_name = {arm.name: arm for arm in arms}
    groups = servers(schedule(suite, arms, concurrencies, repeats), context.finished())
    out: set[str] = set()
    with LoadMaker(context.path("logs", "load-maker.log"), context.settings.environment, context.load_program) as maker:
        for group in groups:
            arm = by_name[group[0].arm]
            left = list(group)
            if arm.name not in out:
                failures = len(context.failures)
                with context.attempt(arm.name, suite):
                    _measure(context, arm, left, repeats, maker)
                if len(context.failures) > failures:
                    out.add(arm.name)
            for unit in left:
                context.progress.drop(unit.kind)


def _measure(context: Context, arm: Arm, left: list[Unit], repeats: int, maker: LoadMaker) -> None:
    """Measure the units of one server; those that are done are taken out of ``left``."""
    repeat = left[0].repeat
    with context.server(arm, left[0].suite, repeat=repeat) as server:
        while left:
            unit = left[0]
            which = f", repeat {repeat + 1} of {repeats}" if repeats > 1 else ""
            context.progress.step(unit.kind, f"{unit.suite}: {arm.name}, {unit.concurrency} at a time{which}")
            line = measure(context, arm, unit, server, maker)
            context.append(line)
            left.pop(0)
            context.progress.done(unit.kind, collect.summary(line))


def measure(context: Context, arm: Arm, unit: Unit, server: Server, maker: LoadMaker) -> dict[str, Any]:
    """One unit on a running server; its line of ``results.jsonl``. Raises BenchError or DemoError."""
    settings = context.settings
    name = store.slug(unit.suite, arm.name, f"c{unit.concurrency}", f"r{unit.repeat}")
    raw_path = context.path("raw", f"{name}.jsonl")
    # bench_serving appends: what an interrupted unit left must not stay.
    raw_path.unlink(missing_ok=True)
    warmed = load.warm_up(settings, server, unit.concurrency)
    before = metrics.read(server)
    arguments = load.command(settings, server.url, unit.concurrency, unit.repeat, raw_path)
    maker.run(arguments, context.path("logs", f"{name}.bench_serving.log"), server)
    after = metrics.read(server)
    server.check_alive()
    counters = context.path("raw", f"{name}.metrics.json")
    store.write_json(counters, {"before": before, "after": after})
    number = settings.num_prompts[settings.concurrency.index(unit.concurrency)]
    measured = collect.figures(arm, collect.read_raw(raw_path), metrics.difference(before, after), number)
    relative: Path = raw_path.relative_to(context.directory)
    return {
        "suite": unit.suite,
        "arm": arm.name,
        "concurrency": unit.concurrency,
        "repeat": unit.repeat,
        "command": [*BENCH_SERVING, *arguments],
        "raw": str(relative),
        "counters": str(counters.relative_to(context.directory)),
        "startup_s": server.startup_s,
        "warm_up_requests": warmed,
        **measured,
    }
