"""Rows of the table of touched SGLang symbols: what a request asks for, what its answer says, and sampling inputs."""

from __future__ import annotations

from nsd_sglang.seam import Seam

_SPEC = "sglang.srt.speculative."

REQUEST_SEAMS = [
    # Per-request options and reports
    Seam(
        _SPEC + "eagle_worker_v2:EAGLEWorkerV2.forward_batch_generation",
        "(self, batch, on_publish=, grammar_barrier=, pp_proxy_tensors=)",
        "subclass",
        "where a reasoning span begins, read off the prompt",
    ),
    Seam(
        _SPEC + "multi_layer_eagle_worker_v2:MultiLayerEagleWorkerV2.forward_batch_generation",
        "(self, batch, on_publish=, grammar_barrier=, pp_proxy_tensors=)",
        "subclass",
        "where a reasoning span begins, read off the prompt",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._validate_one_request",
        "(self, obj, input_ids)",
        "hook",
        "check a request's nsd_* options",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",
        "(self, obj, request=)",
        "hook",
        "refuse a malformed body",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object",
        "(self, obj, input_text, input_ids, input_embeds=, mm_inputs=, token_type_ids=)",
        "hook",
        "refuse sampling parameters that cannot be read",
    ),
    Seam("sglang.srt.entrypoints.http_server:app", "name", "read", "application of a tokenizer worker"),
    Seam("sglang.srt.plugins:load_plugins", "()", "call", "in tokenizer workers, where SGLang loads none"),
    Seam("sglang.srt.environ:Envs.SGLANG_HTTP_SERVER_APP_PATH", "name", "read", "names that application"),
    Seam("sglang.srt.sampling.sampling_params:SamplingParams", "class", "read", "types of sampling parameters"),
    Seam("sglang.srt.managers.io_struct:SessionParams", "class", "read", "types of session parameters"),
    Seam(
        "sglang.srt.sampling.custom_logit_processor:CustomLogitProcessor.from_str",
        "(cls, json_str)",
        "call",
        "a processor that cannot be loaded is refused before the scheduler loads it",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.update_request_meta_info",
        "(self, meta_info, state, customized_info, index, finish_reason)",
        "hook",
        "meta_info.nsd_* and metrics",
    ),
    Seam(
        "sglang.srt.entrypoints.openai.utils:spec_tokens_details_from_meta_info",
        "(meta_info)",
        "hook",
        "nsd_* among the details of an OpenAI response",
    ),
    Seam("sglang.srt.entrypoints.openai.protocol:SglExt", "class", "read", "embeds those details in every response"),
    Seam("sglang.srt.managers.auxiliary_output:append_auxiliary_output", "(current, output)", "call", "attach a step's outcome"),
    Seam(
        "sglang.srt.managers.auxiliary_output:HostAuxiliaryOutput.consume",
        "(self, batch, commits)",
        "subclass",
        "add a step's outcome to its requests",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer.build_additional_customized_info",
        "(self, reqs)",
        "subclass",
        "send each request's sums along",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:Req.update_finish_state",
        "(self, new_accepted_len=)",
        "hook",
        "an answer ends where plain decoding ends it, and counts nothing of a verified block beyond",
    ),
    Seam("sglang.srt.managers.schedule_batch:FINISH_LENGTH", "class(self, length)", "read", "an answer that its length ended"),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.get_output_streamer_class", "(self)", "hook", "choose that streamer"
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.metrics_reporter:SchedulerMetricsReporter.report_decode_stats",
        "(self, can_run_cuda_graph, running_batch=, num_generated_tokens=)",
        "hook",
        "one line beside SGLang's decode statistics",
    ),
    Seam(
        "sglang.srt.parser.reasoning_parser:ReasoningParser",
        "class(self, model_type=, stream_reasoning=, force_reasoning=, request=, tokenizer=, tool_call_parser_active=, prefix=)",
        "call",
        "tokens of the reasoning span",
    ),
    # Sampling inputs at each node
    Seam(_SPEC + "eagle_worker_common:eagle_sample", "name", "hook", "where run_eagle_verify finds it"),
    Seam(_SPEC + "eagle_utils:top_k_renorm_prob", "name", "call", "top-k of every node"),
    Seam(_SPEC + "eagle_utils:top_p_renorm_prob", "name", "call", "top-p of every node"),
    Seam(_SPEC + "eagle_info:EagleVerifyInput.max_tree_depth", "(self)", "read", "longest path of the tree"),
    Seam(
        "sglang.srt.layers.sampler:top_k_top_p_min_p_sampling_from_probs_torch",
        "(probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions, *, return_filtered_probs=, max_top_k=)",
        "read",
        "order of the plain sampler's filters",
    ),
    Seam(
        "sglang.srt.layers.sampler:apply_custom_logit_processor",
        "(logits, sampling_batch_info, num_tokens_in_batch=)",
        "read",
        "how the plain sampler calls logit processors",
    ),
    Seam(
        "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.apply_logits_bias",
        "(self, logits)",
        "read",
        "order of penalties, grammar and bias",
    ),
    Seam("sglang.srt.sampling.sampling_batch_info:ProcessorEntry", "class", "read", "a logit processor and its rows"),
    Seam(
        "sglang.srt.sampling.penaltylib.min_new_tokens:BatchedMinNewTokensPenalizer._prepare",
        "(self)",
        "read",
        "the tokens that min_new_tokens holds back",
    ),
    Seam("sglang.srt.utils.common:is_pin_memory_available", "(device=)", "call", "copies that do not wait"),
    Seam("sglang.srt.runtime_context:get_exec", "()", "call", "read the sampling backend"),
    Seam(
        "sglang.srt.managers.schedule_batch:ScheduleBatch.cumulate_penalty_output_tokens",
        "(self)",
        "hook",
        "penalties of plain decoding on the CPU platform",
    ),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.run_batch",
        "(self, batch, pp_proxy_tensors=)",
        "hook",
        "penalties of plain decoding on the CPU platform",
    ),
    Seam(
        "sglang.srt.managers.scheduler:Scheduler.is_disable_overlap_for_batch",
        "(self, batch, last_batch)",
        "hook",
        "logit processors of plain decoding on the CPU platform",
    ),
    Seam(
        "sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator.cumulate_output_tokens",
        "(self, output_ids)",
        "call",
        "penalties of plain decoding on the CPU platform",
    ),
]
