"""The one error of the benchmark that a user can act on."""

from __future__ import annotations


class BenchError(Exception):
    """Shown without a traceback: one line naming an option and what it accepts, or a few lines with the end of a log."""
