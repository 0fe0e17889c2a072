"""An SGLang platform for machines without an accelerator: SGLang's own CPU engine needs a special build, this one does not.

SGLang calls `activate` in every process, through the entry-point group `sglang.srt.platforms`.
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger(__name__)

PLATFORM = "nsd_sglang.platforms.cpu:CpuPlatform"


def activate() -> str | None:
    """Name of the platform class, or None to stay out.

    Stays out when SGLang's own CPU engine is asked for (`SGLANG_USE_CPU_ENGINE=1`), when an accelerator is visible, and
    when the installed SGLang is not the one whose symbols `nsd_sglang.platforms.seams` lists (one log line names them).
    """
    # torch is loaded by then; SGLang's workers and attention backends are not and must not be.
    import torch

    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1" or torch.accelerator.is_available():
        return None
    from nsd_sglang.platforms.seams import drifted

    moved = drifted()
    if moved:
        logger.error("No CPU platform: it was written for sglang 0.5.23, but %s", "; ".join(moved))
        return None
    return PLATFORM
