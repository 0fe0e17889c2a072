"""The schedule: which unit is measured when, and what of it is left after an interruption."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from nsd_sglang.benchmarks.arms import Arm


@dataclass(frozen=True)
class Unit:
    """One run of bench_serving. ``arm`` is the arm's name; ``repeat`` counts from 0."""

    suite: str
    arm: str
    concurrency: int
    repeat: int

    @property
    def key(self) -> tuple:
        return self.suite, self.arm, self.concurrency, self.repeat

    @property
    def kind(self) -> str:
        """Units of one kind take about as long, for the estimate of the rest."""
        return f"{self.suite} at {self.concurrency}"


def schedule(suite: str, arms: list[Arm], concurrencies: list[int], repeats: int) -> list[Unit]:
    """All units of a suite in order: repeat by repeat every arm, on one fresh server every concurrency.

    A machine that drifts hurts all arms alike that way. The order of the arms is rotated from repeat to repeat, so that none
    is always the first or always follows the same one by the same time.
    """
    units = []
    for repeat in range(repeats):
        shift = repeat * len(arms) // max(repeats, 1)
        for arm in arms[shift:] + arms[:shift]:
            units += [Unit(suite, arm.name, concurrency, repeat) for concurrency in concurrencies]
    return units


def servers(units: Iterable[Unit], done: set[tuple]) -> list[list[Unit]]:
    """The units that are not ``done``, in order, one list for every server that is needed for them."""
    groups = (list(group) for _, group in groupby(units, key=lambda unit: (unit.suite, unit.arm, unit.repeat)))
    left = ([unit for unit in group if unit.key not in done] for group in groups)
    return [group for group in left if group]
