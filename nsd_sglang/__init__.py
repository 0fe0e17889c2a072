"""Nucleus Speculative Decoding (arXiv 2610.07822) for SGLang.

`import nsd_sglang` stays light: the verifier, and with it torch, is imported on first use.
"""

from __future__ import annotations

__version__ = "0.1.0"

_LAZY = {
    "verify_tree": "nsd_sglang.kernels.verify",
    "Proposals": "nsd_sglang.kernels.types",
    "VerifyResult": "nsd_sglang.kernels.types",
}

__all__ = ["Proposals", "VerifyResult", "__version__", "verify_tree"]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
