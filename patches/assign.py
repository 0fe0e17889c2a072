"""Rebinding a module-level name of SGLang, for patches that go in after SGLang has applied its plugins' hooks."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def assign(module: ModuleType, name: str, value: Any) -> Any:
    """Bind `module.name` to `value` and return what it was bound to (None off CUDA for some kernels).

    Raises AttributeError naming the symbol when the module does not bind it: a patch that misses must not pass silently.
    """
    if name not in vars(module):
        raise AttributeError(f"{module.__name__}.{name} is gone; run `nsd-sglang check`")
    previous = vars(module)[name]
    setattr(module, name, value)
    return previous
