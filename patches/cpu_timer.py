"""CPU platform: the clock of SGLang's forward-pass timer (`SGLANG_ENABLE_METRICS_DEVICE_TIMER=1`, off by default).

SGLang records device events, which a CPU does not have; with the timer on, the first forward pass would fail.
"""

from __future__ import annotations

from nsd_sglang.platforms.install import Assignment
from nsd_sglang.seam import Seam

ASSIGNMENTS = (
    Assignment(
        Seam("sglang.srt.utils.device_timer:_TimingInterval", "class", "hook", "time of forward passes, without device events"),
        "nsd_sglang.platforms.cpu_timer:CpuTimingInterval",
    ),
)
