"""The demo: one small real model, three real servers, one table. It is the command ``nsd-sglang demo``."""

from nsd_sglang.demo.command import add_arguments, run

__all__ = ["add_arguments", "run"]
