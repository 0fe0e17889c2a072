"""Every SGLang symbol that the CPU platform subclasses, calls or assigns, as sglang 0.5.23 has it.

The assigned ones are declared beside their replacements, in `nsd_sglang.patches.cpu_*`.
"""

from __future__ import annotations

from nsd_sglang.patches import cpu_sampling, cpu_slots, cpu_timer, cpu_trees
from nsd_sglang.seam import Seam, drift

_SRT = "sglang.srt"
_PLATFORM = f"{_SRT}.platforms.interface:SRTPlatform"
_ATTENTION = f"{_SRT}.layers.attention"
_TORCH_NATIVE = f"{_ATTENTION}.torch_native_backend:TorchNativeAttnBackend"
_CHOICES = f"{_SRT}.arg_groups.choices"
_POOL = f"{_SRT}.mem_cache.memory_pool"
_DRAFT = f"{_SRT}.speculative.draft_utils:DraftBackendFactory"

_PLATFORM_SEAMS = [
    Seam(f"{_SRT}.platforms.cpu:CpuDeviceMixin", "class", "subclass", "memory and device queries of a CPU"),
    Seam(f"{_SRT}.platforms.device_mixin:PlatformEnum.OOT", "name", "read", "an out-of-tree platform"),
    Seam(f"{_PLATFORM}.apply_server_args_defaults", "(self, server_args)", "subclass", "default attention backend"),
    Seam(f"{_PLATFORM}.get_default_attention_backend", "(self)", "subclass", "default attention backend"),
    Seam(f"{_PLATFORM}.get_compile_backend", "(self, mode=)", "subclass", "no compiler"),
    Seam(f"{_SRT}.platforms.device_mixin:DeviceMixin.get_torch_profiler_activity_str", "(self)", "subclass", "profiles of a CPU"),
    Seam(f"{_SRT}.platforms.device_mixin:DeviceMixin.get_torch_profiler_activity", "(self)", "subclass", "profiles of a CPU"),
    Seam(f"{_PLATFORM}.supports_speculative_algorithm", "(self, algorithm)", "subclass", "EAGLE family and NSD"),
    Seam(f"{_PLATFORM}.get_speculative_cache_locs_fn", "(self)", "subclass", "slots of the drafted tokens"),
    Seam(f"{_PLATFORM}.get_kv_pool_cls", "(self, *, kind)", "subclass", "pool without the Triton copy"),
    Seam(f"{_SRT}.utils.common:get_cpu_ids_by_node", "()", "call", "ranks that SGLang finds cores for"),
    Seam(f"{_CHOICES}:add_deterministic_attention_backend_choices", "name", "call", "seeds of requests"),
    Seam(f"{_CHOICES}:add_radix_supported_deterministic_attention_backend_choices", "name", "call", "seeds of requests"),
    Seam(f"{_PLATFORM}.init_backend", "(self)", "subclass", "where the torch functions are assigned"),
]

_ATTENTION_SEAMS = [
    Seam(_TORCH_NATIVE, "class(self, model_runner)", "subclass", "windows, encoders, cross attention"),
    Seam(f"{_TORCH_NATIVE}.init_forward_metadata", "(self, forward_batch)", "subclass", "plan of a forward pass"),
    Seam(
        f"{_TORCH_NATIVE}.forward_extend",
        "(self, q, k, v, layer, forward_batch, save_kv_cache=)",
        "subclass",
        "prefill, verification, draft extension",
    ),
    Seam(
        f"{_TORCH_NATIVE}.forward_decode",
        "(self, q, k, v, layer, forward_batch, save_kv_cache=)",
        "subclass",
        "decoding and draft steps",
    ),
    Seam(f"{_ATTENTION}.base_attn_backend:AttentionBackend.verify_mask", "(self)", "subclass", "layout of the tree mask"),
    Seam(
        f"{_ATTENTION}.base_attn_backend:AttentionBackend.update_verify_buffers_to_fill_after_draft",
        "(self, spec_info, cuda_graph_bs)",
        "subclass",
        "nothing to redo without streams",
    ),
    Seam(f"{_ATTENTION}.verify_mask:VerifyMask", "class", "call", "layout of the tree mask"),
    Seam("sglang.kernels.ops.speculative.spec_tree:TreeMaskMode.QLEN_ONLY", "name", "read", "layout of the tree mask"),
    Seam(f"{_ATTENTION}.attention_registry:register_attention_backend", "(name)", "call", "torch_native is ours"),
    Seam(
        f"{_DRAFT}._create_backend",
        "(self, backend_name, backend_map, error_template, stamps_children=)",
        "hook",
        "torch_native can draft",
    ),
]

_POOL_SEAMS = [
    Seam(f"{_POOL}:KVWriteLoc", "class", "call", "writing keys and values"),
    Seam(f"{_POOL}:MHATokenToKVPool._init_kv_copy_and_warmup", "(self)", "subclass", "no Triton copy"),
    Seam(f"{_POOL}:MHATokenToKVPool._move_kv_cache_impl", "(self, tgt_loc, src_loc)", "subclass", "moving accepted tokens"),
    Seam(f"{_POOL}:move_kv_cache_native", "(k_buffer, v_buffer, tgt_loc, src_loc)", "call", "moving accepted tokens"),
    Seam(
        f"{_POOL}:MHATokenToKVPool.set_kv_buffer",
        "(self, layer, loc_info, cache_k, cache_v, k_scale=, v_scale=, layer_id_override=, dcp_kv_mask=)",
        "call",
        "writing keys and values",
    ),
]

_ASSIGNED = [a.seam for module in (cpu_slots, cpu_trees, cpu_sampling, cpu_timer) for a in module.ASSIGNMENTS]

CPU_SEAMS: list[Seam] = _PLATFORM_SEAMS + _ATTENTION_SEAMS + _POOL_SEAMS + _ASSIGNED


def drifted() -> list[str]:
    """One line for every symbol that is gone or has another signature; empty for the supported version."""
    return [line for line in map(drift, CPU_SEAMS) if line]
