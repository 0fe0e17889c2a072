"""Where a run stands: step k of n, elapsed time, an estimate of the rest, and what is under way."""

from __future__ import annotations

import sys
import time
from collections import defaultdict


class Progress:
    """Lines on standard output.

    A *step* has a kind, such as ``comparison at 8``; the estimate of the rest is the mean time of finished steps of the
    same kind, or of all of them for a kind that has not been seen. Time outside of steps (server starts) is spread over them.
    """

    def __init__(self, clock=time.monotonic, out=None) -> None:
        self._clock = clock
        self._out = out or sys.stdout
        self._begin = self._mark = clock()
        self._left: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._done = 0

    def plan(self, kind: str, count: int = 1) -> None:
        """Expect ``count`` more steps of ``kind``."""
        self._left[kind] += count

    def drop(self, kind: str, count: int = 1) -> None:
        """Expect ``count`` steps fewer: they cannot be done."""
        self._left[kind] = max(0, self._left[kind] - count)

    def step(self, kind: str, text: str) -> None:
        """Say that the next step begins."""
        total = self._done + sum(self._left.values())
        rest = self.remaining_s()
        estimate = "" if rest is None else f", about {_clock_text(rest)} left"
        self.say(f"[{self._done + 1}/{max(total, self._done + 1)}] {_clock_text(self._clock() - self._begin)}{estimate}  {text}")

    def done(self, kind: str, text: str = "") -> None:
        """Say that the step has been finished, with its figures."""
        now = self._clock()
        self._seconds[kind].append(now - self._mark)
        self._mark = now
        self._left[kind] = max(0, self._left[kind] - 1)
        self._done += 1
        if text:
            self.say(f"    {text}")

    def remaining_s(self) -> float | None:
        """Estimated seconds for the planned steps, None before the first has been finished."""
        seen = [seconds for times in self._seconds.values() for seconds in times]
        if not seen:
            return None
        mean = sum(seen) / len(seen)
        return sum(
            count * (sum(self._seconds[kind]) / len(self._seconds[kind]) if self._seconds.get(kind) else mean)
            for kind, count in self._left.items()
        )

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def _clock_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
