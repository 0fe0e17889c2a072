"""NSD's flags on SGLang's command line.

Hooks `ServerArgs.add_cli_args(parser)` to add the flags, and `ServerArgs.from_cli_args(args)` to put their values on the
record: SGLang has no other way for a plugin to add an option. The record is pickled with its bookkeeping attributes,
so the scheduler processes read the same values.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

from nsd_sglang import options


def install() -> None:
    """Register both hooks; SGLang applies them when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.server_args.ServerArgs.add_cli_args", add_cli_args, HookType.AROUND)
    HookRegistry.register("sglang.srt.server_args.ServerArgs.from_cli_args", from_cli_args, HookType.AROUND)


def add_cli_args(original: Callable[..., None], parser: argparse.ArgumentParser) -> None:
    original(parser)
    options.add_arguments(parser)


def from_cli_args(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    from nsd_sglang.algorithm import exit_with, requested

    server_args = original(cls, args)
    if requested(server_args):
        server_args._nsd_command_line = True
        try:
            server_args._nsd_options = options.from_namespace(args)
        except options.OptionError as error:
            exit_with(str(error))
    else:
        given = [options.flag(name) for name in options.NSDOptions.__dataclass_fields__ if getattr(args, f"nsd_{name}", None)]
        if given:
            exit_with(f"{given[0]} needs --speculative-algorithm NSD, got {server_args.speculative_algorithm}")
    return server_args
