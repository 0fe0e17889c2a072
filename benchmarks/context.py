"""What a suite is given: the run's directory and settings, servers for its arms, and what has been done before.

A suite is a module with ``run(context) -> None``; before it runs, ``steps(context) -> int``, if it has one, is asked how many
steps it is going to report. It skips what ``context.finished`` names, appends every result as soon as it is whole, and lets
:class:`BenchError` and DemoError of one arm go through ``context.attempt``, so that the other arms still run:

    done = context.finished("quality.jsonl", ("suite", "arm", "prompt", "sample"))
    for arm in context.arms:
        with context.attempt(arm.name, "quality"), context.server(arm, "quality") as server:
            ...
            context.append(line, "quality.jsonl")
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks import store
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.progress import Progress
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.demo.cache import DemoError
from nsd_sglang.demo.server import Server

# SGLang's own timer of forward passes (device events that nobody waits for), reported by Prometheus.
METERED = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}


@dataclass
class Context:
    """One run. ``arms`` are those of the comparison; ``failures`` has one line or more for every arm of a suite that failed,
    and ``failed`` the same with suite, arm and error apart.
    """

    directory: Path
    settings: Settings
    arms: list[Arm]
    progress: Progress = field(default_factory=Progress)
    failures: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    # Stand in for launch_server and the load maker in tests.
    program: list[str] | None = None
    load_program: list[str] | None = None

    def server(
        self, arm: Arm, suite: str, extra_arguments: Iterable[str] = (), repeat: int = 0, concurrency: int | None = None
    ) -> Server:
        """A fresh server of ``arm`` for a ``with`` block; its log is ``logs/SUITE-ARM-rREPEAT.log``.

        Raises DemoError from ``__enter__`` when it does not start, with the end of its log.
        """
        settings = self.settings
        arguments = ["--model-path", settings.model, "--random-seed", str(settings.seed + repeat), "--enable-metrics"]
        arguments += [*settings.server_args, *arm.server_arguments, *extra_arguments]
        log = self.path("logs", f"{store.slug(suite, arm.name, f'r{repeat}')}.log")
        environment: dict[str, str | None] = {"HF_HUB_OFFLINE": None} | METERED | settings.environment
        return Server(arm.name, arguments, log, program=self.program, environment=environment)

    def prompts(self, count: int | None = None) -> list[str]:
        """The first ``count`` prompts of the dataset in the file's order, as text that the server tokenises itself.

        HumanEval's for the dataset ``random``, which bench_serving makes up.
        """
        from nsd_sglang.benchmarks.dataset import prompts

        return prompts(self.settings, self.directory)[:count]

    def path(self, *parts: str) -> Path:
        """A path in the run's directory, whose folder exists."""
        path = self.directory.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finished(self, file: str = store.RESULTS, key: tuple[str, ...] = store.UNIT_KEY) -> set[tuple]:
        """The values of ``key`` of every line of ``file``: what must not be done again."""
        return {tuple(line.get(name) for name in key) for line in store.read_lines(self.directory / file)}

    def append(self, line: dict[str, Any], file: str = store.RESULTS) -> None:
        """Append a result; it is on the disk when this returns."""
        store.append_line(self.directory / file, line)

    @contextlib.contextmanager
    def attempt(self, name: str, suite: str) -> Iterator[None]:
        """Turn a BenchError, DemoError or OSError of the block into an entry of ``failures``, and go on after it."""
        try:
            yield
        except (BenchError, DemoError, OSError) as error:
            self.failures.append(f"{suite}: {name}: {error}")
            self.failed.append({"suite": suite, "arm": name, "error": str(error)})
            self.say(f"FAILED  {self.failures[-1]}")

    def say(self, text: str) -> None:
        self.progress.say(text)
