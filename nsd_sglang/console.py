"""What the commands that start servers share: options that refuse bad values in one line, and signals that unwind."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def one_line_errors(parser: argparse.ArgumentParser) -> None:
    """Let ``parser`` refuse a value with one line that names the option, and exit code 2; argparse prints the usage first."""
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message.removeprefix('argument ')}\n")


def number(kind: type, low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number of ``kind`` within [low, high]; argparse adds the option's name to the error."""
    word = "a whole number" if kind is int else "a number"

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted; give {word} from {low} to {high}")
        return value

    return parse


def tree_problem(steps: int, topk: int, nodes: int) -> str | None:
    """What is wrong with a draft tree's shape, as one line; None when SGLang can draft it."""
    if topk == 1 and nodes != steps + 1:
        return f"--num-draft-tokens {nodes}: with --eagle-topk 1 it is --num-steps plus one, {steps + 1}"
    if nodes > largest_tree(steps, topk):
        return f"--num-draft-tokens {nodes}: a tree of {steps} steps with topk {topk} has at most {largest_tree(steps, topk)}"
    return None


def largest_tree(steps: int, topk: int) -> int:
    """Nodes of the largest tree: the root, topk of the first step, and topk for each of the topk kept of every later one."""
    return 1 + topk + (steps - 1) * topk * topk


def writable(directory: Path) -> bool:
    """Whether files can be made in ``directory``, or it can be made with its parents."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)


@contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like an exception, so that ``with`` blocks stop their servers."""

    def leave(signal_number, _frame):
        sys.exit(128 + signal_number)

    before = {which: signal.signal(which, leave) for which in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
