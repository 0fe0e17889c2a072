"""Intervals of SGLang's forward-pass timer, by the clock: a CPU has no device events, and a pass is over when it returns."""

from __future__ import annotations

import time
from typing import Any


class CpuTimingInterval:
    """Stands in for `_TimingInterval`; the timer sets `observer` and reads `metadata`."""

    stream = None

    def __init__(self) -> None:
        self.observer: Any = None
        self.metadata: dict | None = None
        self._begin = time.perf_counter()
        self._seconds: float | None = None

    @staticmethod
    def create(track_stream: bool = False) -> CpuTimingInterval:
        return CpuTimingInterval()

    def end(self, metadata: dict) -> None:
        self._seconds = time.perf_counter() - self._begin
        self.metadata = metadata

    def is_complete(self) -> bool:
        return self._seconds is not None

    def is_active(self) -> bool:
        return self._seconds is None

    def elapsed_time(self) -> float:
        """Milliseconds, as a device event's."""
        return self._seconds * 1000.0
