"""The table of every SGLang symbol this package touches, and what is checked before NSD registers."""

from __future__ import annotations

from importlib import metadata

from nsd_sglang.seam import Seam, drift
from nsd_sglang.seams_requests import REQUEST_SEAMS

# Versions of sglang whose symbols the table was read off.
SUPPORTED_VERSIONS = ("0.5.23",)
SUPPORTED = "Supported: sglang " + ", ".join(SUPPORTED_VERSIONS)

_ARGS = "sglang.srt.arg_groups."
_SPEC = "sglang.srt.speculative."

NSD_SEAMS = [
    # Registration and arguments
    Seam(
        _SPEC + "spec_info:SpeculativeAlgorithm.register",
        "(cls, name, *, supports_overlap=, validate_server_args=, spec_class=)",
        "call",
        "register the name NSD",
    ),
    Seam(
        _SPEC + "spec_registry:CustomSpecAlgo",
        "class(self, name, factory, *, supports_overlap=, validate_server_args=)",
        "subclass",
        "the registered algorithm",
    ),
    Seam(_ARGS + "resolution_hooks:register_resolution_hook", "(name)", "call", "take part in argument resolution"),
    Seam(
        _ARGS + "model_path_hook:handle_model_source_paths",
        "(server_args)",
        "hook",
        "resolve NSD to its drafter's algorithm",
    ),
    Seam(
        _ARGS + "speculative_hook:handle_speculative_decoding",
        "(server_args)",
        "hook",
        "checks that NSD adds to the drafter's algorithm",
    ),
    Seam(
        _ARGS + "speculative_hook:_disable_overlap_schedule_for_cpu",
        "(server_args)",
        "hook",
        "overlap scheduling works on our CPU platform",
    ),
    Seam(_ARGS + "overrides:declare_resolution", "(server_args, source, **fields)", "call", "record a resolved argument"),
    Seam(_ARGS + "model_override_base:resolving_view", "(server_args)", "call", "read resolved arguments"),
    Seam("sglang.srt.server_args:ServerArgs.add_cli_args", "(parser)", "hook", "add the --nsd-* flags"),
    Seam("sglang.srt.server_args:ServerArgs.from_cli_args", "(cls, args)", "hook", "keep their values on the record"),
    Seam(
        "sglang.srt.plugins.hook_registry:HookRegistry.register",
        "(cls, target, hook, hook_type=, *, source=)",
        "call",
        "wrap functions that no plugin interface reaches",
    ),
    Seam(
        "sglang.srt.utils.hf_transformers.config:get_config",
        "(model, trust_remote_code, revision=, model_override_args=, model_config_parser=, **kwargs)",
        "call",
        "read the draft's and the target's configuration",
    ),
    Seam(
        "sglang.srt.utils.hf_transformers.tokenizer:get_tokenizer",
        "(tokenizer_name, *args, tokenizer_mode=, trust_remote_code=, tokenizer_revision=, tokenizer_backend=, **kwargs)",
        "call",
        "compare a standalone draft's tokenizer with the target's",
    ),
    Seam(
        "sglang.srt.utils.hf_transformers.common:get_context_length", "(config)", "call", "compare the draft's context with the target's"
    ),
    Seam("sglang.srt.utils.hf_transformers.common:get_hf_text_config", "(config)", "call", "compare the draft's context with the target's"),
    Seam(
        "sglang.srt.environ:Envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "name", "read", "whether SGLang takes a shorter draft"
    ),
    Seam("sglang.utils:is_in_ci", "()", "call", "whether SGLang takes a shorter draft"),
    # Workers
    Seam(
        _SPEC + "spec_info:SpeculativeAlgorithm.create_worker",
        "(self, server_args)",
        "hook",
        "return the NSD subclass of the drafter's worker",
    ),
    Seam(
        _SPEC + "eagle_worker_v2:EAGLEWorkerV2",
        "class(self, server_args, gpu_id, nccl_port, target_worker)",
        "subclass",
        "worker of EAGLE, EAGLE-3 and MTP drafts",
    ),
    Seam(
        _SPEC + "eagle_worker_v2:EAGLEWorkerV2._stub_skipped_draft_extend",
        "(self, batch, batch_output)",
        "subclass",
        "an adaptive round without a draft",
    ),
    Seam(
        _SPEC + "eagle_worker_v2:EAGLEWorkerV2.verify",
        "(self, batch, pp_proxy_tensors=, grammar_barrier=)",
        "subclass",
        "name the batch whose drafts are verified",
    ),
    Seam(
        _SPEC + "multi_layer_eagle_worker_v2:MultiLayerEagleWorkerV2",
        "class(self, server_args, gpu_id, nccl_port, target_worker)",
        "subclass",
        "worker of drafts with several MTP layers",
    ),
    Seam(
        _SPEC + "standalone_worker_v2:StandaloneWorkerV2",
        "class(self, server_args, gpu_id, nccl_port, target_worker)",
        "subclass",
        "worker of standalone drafts",
    ),
    Seam(
        _SPEC + "base_spec_worker:BaseSpecWorker.alloc_memory_pool",
        "(self, memory_pool_config=, req_to_token_pool=, token_to_kv_pool_allocator=)",
        "subclass",
        "skip the vocabulary check of SGLang's chain sampler",
    ),
    Seam("sglang.srt.runtime_context:get_spec", "()", "call", "read the resolved speculative options"),
    Seam("sglang.srt.runtime_context:get_parallel", "()", "call", "which rank records verify steps"),
    Seam("sglang.srt.runtime_context:_ConfigBag.override", "(self, **kwargs)", "call", "switch those checks off"),
    Seam(
        "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len",
        "()",
        "hook",
        "room for the decode reserve of a tree near the context limit",
    ),
    Seam(
        "sglang.srt.mem_cache.kv_cache_configurator:get_req_to_token_extra_context_len",
        "name",
        "hook",
        "where rows are sized",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch.init_new",
        "(cls, batch, model_runner, *, capture_hidden_mode=, return_hidden_states_before_norm, extend_position_info=, "
        "spec_mrope_positions=, kv_loc_plan=, write_cols=)",
        "hook",
        "hidden states beside a standalone draft",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info:get_server_return_hidden_states_mode",
        "()",
        "call",
        "which of them the server may return",
    ),
    Seam("sglang.srt.mem_cache.allocation_sizing:get_alloc_reserve_per_decode", "()", "call", "size of that reserve"),
    Seam("sglang.srt.mem_cache.allocation_sizing:get_alloc_page_size", "()", "call", "size of that reserve"),
    # Verification
    Seam(
        _SPEC + "eagle_utils:eagle_sample",
        "(verify_input, batch, logits_output, grammar_mask=, uno_target_max_top_k=, *, watermark_state=, "
        "watermark_full_mask=)",
        "read",
        "calls the sampling kernel by its module-level name",
    ),
    Seam(
        "sglang.kernels.ops.speculative.sampling:tree_speculative_sampling_target_only",
        "(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, "
        "retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, "
        "threshold_single=, threshold_acc=, deterministic=)",
        "hook",
        "replaced by nucleus acceptance in eagle_utils",
    ),
    Seam(
        "sglang.kernels.ops.speculative.reject_sampling:chain_speculative_sampling_triton",
        "(predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, "
        "retrive_next_sibling, uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs, "
        "threshold_single, threshold_acc, deterministic, *, block_verification=)",
        "hook",
        "replaced by nucleus acceptance in eagle_utils",
    ),
    Seam(_SPEC + "eagle_utils:tree_speculative_sampling_target_only", "name", "hook", "where eagle_sample finds it"),
    Seam(_SPEC + "eagle_utils:chain_speculative_sampling_triton", "name", "hook", "where eagle_sample finds it"),
    Seam(
        _SPEC + "eagle_utils:_seeded_verify_coins",
        "(*, sampling_seed, seq_lens, draft_token_num, device)",
        "call",
        "seeded coins for second and later siblings",
    ),
    # Sampled drafting
    Seam(
        _SPEC + "spec_utils:renorm_draft_probs",
        "(next_token_logits, sampling_info, use_rejection_sampling)",
        "hook",
        "the root's law after a prefill",
    ),
    Seam(
        _SPEC + "spec_utils:fast_sample",
        "(probs, num_samples=, *, sampling_seed=, positions=, draft_step=)",
        "hook",
        "the root's children after a prefill",
    ),
    Seam(
        _SPEC + "spec_utils:sample_draft_proposal",
        "(next_token_logits, temperatures, top_ks=, *, sampling_seed=, positions=, draft_step=)",
        "hook",
        "law and children of every later node",
    ),
    Seam(
        _SPEC + "eagle_worker_common:build_eagle_verify_input",
        "(batch, draft_input, parent_list, top_scores_index, draft_tokens, draft_probs, *, target_worker, topk, "
        "num_steps, num_draft_tokens, tree_mask_mode, device)",
        "hook",
        "match recorded laws with tree nodes",
    ),
    Seam(_SPEC + "eagle_worker_v2:renorm_draft_probs", "name", "hook", "where the draft worker finds it"),
    Seam(_SPEC + "eagle_worker_v2:fast_sample", "name", "hook", "where the draft worker finds it"),
    Seam(_SPEC + "eagle_worker_v2:sample_draft_proposal", "name", "hook", "where the draft worker finds it"),
    Seam(_SPEC + "eagle_worker_v2:build_eagle_verify_input", "name", "hook", "where the draft worker finds it"),
    Seam(
        _SPEC + "eagle_worker_v2:EagleDraftWorker.draft_forward",
        "(self, forward_batch)",
        "read",
        "grows the tree that the records follow",
    ),
    Seam(
        _SPEC + "eagle_draft_cuda_graph_runner:EagleDraftInputBuffers",
        "class",
        "hook",
        "graph buffer of the root's record",
    ),
    # Standalone drafts
    Seam(
        _SPEC + "eagle_worker_v2:EagleDraftWorker._draft_extend_for_prefill",
        "(self, batch, target_hidden_states, next_token_ids, mm_input_embeds=, kv_loc_plan=)",
        "hook",
        "prefill without EAGLE's shift",
    ),
    Seam(
        _SPEC + "eagle_worker_v2:EagleDraftWorker._draft_extend_for_decode",
        "(self, batch, batch_result, *, kv_loc_plan=)",
        "hook",
        "one slot further",
    ),
    Seam(_SPEC + "eagle_worker_v2:EagleDraftWorker.draft", "(self, batch, *, with_topology=)", "hook", "one slot further"),
    Seam(
        _SPEC + "eagle_worker_common:prepare_for_draft_extend",
        "(draft_extend_input, batch, predict, num_draft_tokens, draft_model_runner, cuda_graph_runner, *, "
        "return_hidden_states_before_norm, widened_out_cache_loc=, widened_positions=, kv_loc_plan=)",
        "read",
        "takes position and slots from the batch",
    ),
    Seam(
        "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs_uniform_func",
        "(req_pool_indices, req_to_token, start_offset, batch_size, draft_token_num, device, *, full_v2p=, swa_v2p=, full_out=, swa_out=, page_size=, positions_out=, anchor_src=, anchor_out=)",
        "call",
        "slots of a decode extend",
    ),
    Seam("sglang.srt.mem_cache.allocation_sizing:get_alloc_len_per_decode", "()", "hook", "one more slot a request"),
    Seam("sglang.srt.model_executor.pool_configurator:get_alloc_len_per_decode", "name", "hook", "where pools are sized"),
    Seam(
        "sglang.kernels.ops.sampling.murmur_hash:murmur_hash32",
        "(seed, positions, col_indices)",
        "call",
        "seeded draws of the draft",
    ),
    *REQUEST_SEAMS,
]


def table() -> list[Seam]:
    """All rows: NSD's own, then the CPU platform's."""
    from nsd_sglang.platforms.seams import CPU_SEAMS

    return NSD_SEAMS + CPU_SEAMS


def installed_version() -> str | None:
    """Version of the installed sglang, None when there is none."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def version_drift() -> str | None:
    """None when the installed sglang is a supported version, else one line."""
    version = installed_version()
    if version in SUPPORTED_VERSIONS:
        return None
    return "sglang is not installed" if version is None else f"sglang {version} is installed"


def first_drift() -> str | None:
    """None when NSD may register, else one line that names the version or the first symbol that changed."""
    for seam in NSD_SEAMS:
        reason = drift(seam)
        if reason is not None:
            return reason
    return version_drift()
