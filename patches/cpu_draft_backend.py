"""`DraftBackendFactory._create_backend`: add the CPU platform's backends to the table it is given.

The factory's tables name the backends that can draft, and there is no way to register another one. Written for
`_create_backend(self, backend_name, backend_map, error_template, stamps_children=)` of sglang 0.5.23.
"""

from __future__ import annotations

import functools


def create_backend(original):
    """Wrapper of `original` that knows `torch_native`, as a per-step container (`stamps_children`) or as one backend."""

    @functools.wraps(original)
    def wrapper(factory, backend_name, backend_map, error_template, stamps_children=False):
        from nsd_sglang.platforms.cpu import ATTENTION_BACKEND
        from nsd_sglang.platforms.cpu_attention import CpuAttention
        from nsd_sglang.platforms.cpu_draft_attention import CpuDraftAttention

        def build():
            runner = factory.draft_model_runner
            if stamps_children:
                backend = CpuDraftAttention(runner, factory.topk, factory.speculative_num_steps)
            else:
                backend = CpuAttention(runner)
            return ATTENTION_BACKEND, backend

        table = {**backend_map, ATTENTION_BACKEND: build}
        return original(factory, backend_name, table, error_template, stamps_children)

    return wrapper
