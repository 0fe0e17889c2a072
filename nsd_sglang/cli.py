"""The `nsd-sglang` command."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="nsd-sglang", description="Nucleus Speculative Decoding for SGLang.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{check,demo,bench,report}")
    commands.add_parser(
        "check",
        help="compare every SGLang symbol that NSD touches with the installed sglang",
        description="Print the table of SGLang symbols that NSD touches. Exit code 1 when one of them has changed.",
    )
    demo = commands.add_parser(
        "demo",
        help="serve a small model plainly, with stock speculation and with NSD, and compare",
        description="Start three servers one after the other on this machine and print one table.",
    )
    bench = commands.add_parser(
        "bench",
        help="compare plain decoding, stock speculation and NSD under sglang.bench_serving",
        description="Measure a target with its draft, arm by arm on fresh servers; without --model the demo's pair.",
    )
    report = commands.add_parser(
        "report",
        help="rebuild the report of a benchmark",
        description="Write report.html and its pictures again from the results in DIR.",
    )
    report.add_argument("directory", type=Path, metavar="DIR", help="what `nsd-sglang bench` calls its results")
    from nsd_sglang.benchmarks import options
    from nsd_sglang.demo import add_arguments

    add_arguments(demo)
    options.add_arguments(bench)
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(args: argparse.Namespace) -> int:
    if args.command == "check":
        from nsd_sglang.check import run

        return run()
    if args.command == "bench":
        from nsd_sglang.benchmarks.command import run

        return run(args)
    if args.command == "report":
        return _report(args.directory)
    from nsd_sglang.demo import run

    return run(args)


def _report(directory: Path) -> int:
    from nsd_sglang.benchmarks.errors import BenchError
    from nsd_sglang.benchmarks.report import build

    try:
        for path in build(directory):
            print(path)
    except (BenchError, OSError) as error:
        print(f"nsd-sglang report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
