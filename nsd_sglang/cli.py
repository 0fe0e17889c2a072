"""The `nsd-sglang` command."""

from __future__ import annotations

import argparse
import os
import sys


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="nsd-sglang", description="Nucleus Speculative Decoding for SGLang.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{check,demo}")
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
    from nsd_sglang.demo import add_arguments

    add_arguments(demo)
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
    from nsd_sglang.demo import run

    return run(args)


if __name__ == "__main__":
    sys.exit(main())
