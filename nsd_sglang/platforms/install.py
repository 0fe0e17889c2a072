"""Putting a torch function where SGLang has a name, in every module that has a copy of that name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from dataclasses import dataclass

from nsd_sglang.seam import Seam


@dataclass(frozen=True)
class Assignment:
    """One SGLang name and the function that takes its place.

    seam: the name with the signature it was written for; `use` is `hook`.
    function: `package.module:name` of the replacement.
    importers: modules that took the name with `from ... import`. Those already loaded hold a stale copy, which is
        assigned too; those loaded later find the replacement.
    """

    seam: Seam
    function: str
    importers: tuple[str, ...] = ()


def install(*assignments: Assignment) -> int:
    """Assign every replacement; returns how many names were assigned, copies not counted.

    Assigned, not hooked with SGLang's HookRegistry: it goes on when a hook fails, and several of these names are None
    without CUDA, where a registered replacement would overwrite every None in every module.

    Raises:
        RuntimeError: SGLang's module or a copy in an importer does not have the name.
    """
    for assignment in assignments:
        module_name, _, name = assignment.seam.target.partition(":")
        function = pkgutil.resolve_name(assignment.function)
        importers = [sys.modules[m] for m in assignment.importers if m in sys.modules]
        for module in (importlib.import_module(module_name), *importers):
            # A module in the middle of its own imports may not have reached the name; it will find the replacement.
            if not hasattr(module, name) and not getattr(module.__spec__, "_initializing", False):
                raise RuntimeError(f"CPU platform: {module.__name__} has no {name} to replace")
            setattr(module, name, function)
    return len(assignments)
