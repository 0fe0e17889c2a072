"""The platform object: what SGLang asks about the device, and where the torch functions are installed."""

from __future__ import annotations

import logging
import os

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from nsd_sglang.platforms.cores import share_cores

logger = logging.getLogger(__name__)

ATTENTION_BACKEND = "torch_native"
DEFAULT_POOL_TOKENS = 32768
SPECULATIVE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NSD")


class CpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Serves with PyTorch alone, out of tree as far as SGLang is concerned.

    The default capabilities stand (no Triton, no graph capture), so that SGLang picks its torch code paths; what has no
    torch code path is assigned from `nsd_sglang.patches.cpu_*` in `init_backend`.
    """

    _enum = PlatformEnum.OOT

    def __init__(self) -> None:
        # A few small functions of SGLang are decorated with torch.compile. On a CPU that means a C++ compiler and tens
        # of seconds within the first requests, to save microseconds. Read when the decorators run, so set this early.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        # By default OpenMP threads spin while they wait for each other. On a machine with few cores the server's own other
        # processes are enough to make that many times slower. Read when a process starts: the model processes inherit it.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    def get_device(self, device_id: int = 0) -> str:
        """Always "cpu". SGLang compares this with strings, so it is no `torch.device`."""
        return "cpu"

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def apply_server_args_defaults(self, server_args) -> None:
        """Torch attention, and a key-value pool of a size that a shared machine can spare.

        A fraction of the main memory, SGLang's measure, is more than a process should take by default: the pool is
        written once when it is made, so all of it becomes resident.
        """
        # SGLang has put in its own CPU engine's backend by now, which does not exist here.
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = ATTENTION_BACKEND
        self._accept_seeds()
        share_cores(server_args)
        if server_args.max_total_tokens is None and server_args.mem_fraction_static is None:
            server_args.max_total_tokens = DEFAULT_POOL_TOKENS

    @staticmethod
    def _accept_seeds() -> None:
        """SGLang honours requests' seeds under --enable-deterministic-inference, which it grants by attention backend."""
        from sglang.srt.arg_groups import choices

        for accepted, add in (
            (choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES, choices.add_deterministic_attention_backend_choices),
            (
                choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
                choices.add_radix_supported_deterministic_attention_backend_choices,
            ),
        ):
            if ATTENTION_BACKEND not in accepted:
                add([ATTENTION_BACKEND])

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    def get_torch_profiler_activity_str(self) -> str:
        """What `/start_profile` calls this device's activity; SGLang asks every out-of-tree platform."""
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in SPECULATIVE_ALGORITHMS

    def get_speculative_cache_locs_fn(self):
        from nsd_sglang.platforms.cpu_slots import assign_extend_cache_locs

        return assign_extend_cache_locs

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        if kind != "mha":
            return None
        from nsd_sglang.platforms.cpu_kv_pool import CpuMHATokenToKVPool

        return CpuMHATokenToKVPool

    def init_backend(self) -> None:
        """Called while `model_runner` is being imported in a process that runs models.

        Raises:
            RuntimeError: a symbol could not be assigned; the message names it.
        """
        from nsd_sglang.patches import cpu_sampling, cpu_slots, cpu_timer, cpu_trees
        from nsd_sglang.platforms.install import install

        count = install(*cpu_slots.ASSIGNMENTS, *cpu_trees.ASSIGNMENTS, *cpu_sampling.ASSIGNMENTS, *cpu_timer.ASSIGNMENTS)
        register_attention()
        # `torch.get_device_module()` is `torch.cuda` in a CUDA build even without a GPU, and SGLang waits for it in
        # `/release_memory_occupation`. Nothing is ever queued there.
        torch.cuda.synchronize = lambda device=None: None
        logger.info("CPU platform: %d torch functions in place of kernels", count)


def register_attention() -> None:
    """Register `CpuAttention` as SGLang's `torch_native` backend, and as its draft backend."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.speculative import draft_utils

    from nsd_sglang.patches.cpu_draft_backend import create_backend

    @register_attention_backend(ATTENTION_BACKEND)
    def create(runner):
        from nsd_sglang.platforms.cpu_attention import CpuAttention

        return CpuAttention(runner)

    draft_utils.DraftBackendFactory._create_backend = create_backend(draft_utils.DraftBackendFactory._create_backend)
