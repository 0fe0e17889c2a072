"""NSD as SGLang's argument resolution sees it.

SGLang compares the *name* of the algorithm in some thirty places (pool sizing, attention plans, hidden-state relay,
LoRA, HiCache). NSD changes acceptance alone, so before the first of them runs the name NSD is resolved to the algorithm
of its drafter, as SGLang itself resolves NEXTN to EAGLE: `handle_speculative_decoding` then gives NSD the defaults and
the checks of EAGLE, EAGLE3 or STANDALONE, and only the worker class differs (`patches/create_worker.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any, Callable

from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from nsd_sglang import drafter as drafters
from nsd_sglang.options import NSDOptions, OptionError, from_namespace
from nsd_sglang.tokenizer_workers import load_in_tokenizer_workers

logger = logging.getLogger(__name__)

NAME = "NSD"


class NSDAlgorithm(CustomSpecAlgo):
    """The registered name. It is resolved to its drafter's algorithm before SGLang asks it anything; being asked means
    that a resolution step was skipped, which must not pass silently."""

    def handle_server_args(self, server_args: Any) -> None:
        raise RuntimeError("NSD was not resolved to its drafter's algorithm; run `nsd-sglang check`")


def requested(server_args: Any) -> bool:
    """Whether the operator's input (not what it resolved to) asks for NSD."""
    return (getattr(server_args, "speculative_algorithm", None) or "").upper() == NAME


def options_of(server_args: Any) -> NSDOptions:
    """Options that travel on the record (their thinking tokens settled by `_resolve_name`); from the environment for a
    record that no command line made.

    Raises OptionError."""
    options = server_args.__dict__.get("_nsd_options")
    if options is None:
        options = server_args._nsd_options = from_namespace()
    return options


def register() -> None:
    """Register the name and the two resolution steps. Called once per process."""
    SpeculativeAlgorithm.register(NAME, spec_class=NSDAlgorithm, supports_overlap=True)(_unresolved)
    register_resolution_hook("handle_model_source_paths")(_resolve_name)
    register_resolution_hook("handle_speculative_decoding")(_resolve_shape)


def _unresolved(server_args: Any) -> type:
    raise RuntimeError("NSD was not resolved to its drafter's algorithm; run `nsd-sglang check`")


def _resolve_name(server_args: Any, previous: Callable[[Any], None]) -> None:
    """After SGLang settled where the checkpoints are (and fetched them from a bucket or hub that is no directory yet),
    choose the drafter and give the record its algorithm's name."""
    previous(server_args)
    if not requested(server_args):
        return
    with _one_line(server_args):
        options = options_of(server_args)
        load_in_tokenizer_workers(server_args)
        _check_thresholds(resolving_view(server_args))
        _check_backend(options)
        server_args._nsd_options = options = _with_think_ids(resolving_view(server_args), options)
        chosen = _choose_drafter(server_args, options)
        _check_lora(resolving_view(server_args), chosen.family)
        declare_resolution(
            server_args,
            "nsd_sglang.resolve_name",
            speculative_algorithm=chosen.algorithm,
            speculative_draft_model_path=chosen.path,
        )
        logger.info(
            "NSD: %s drafter, %s proposals, %s threshold %g", chosen.family, options.proposals, options.gate, options.threshold
        )


def _resolve_shape(server_args: Any, previous: Callable[[Any], None]) -> None:
    """SGLang's own step for the drafter's algorithm, then what NSD adds to it."""
    if not requested(server_args):
        return previous(server_args)
    with _one_line(server_args):
        cfg = resolving_view(server_args)
        options = options_of(server_args)
        _check_shape(cfg)
        previous(server_args)
        if cfg.speculative_use_block_verification:
            raise OptionError("--speculative-use-block-verification is not accepted with NSD, whose verifier replaces it")
        if options.proposals == "sampled" or cfg.speculative_use_rejection_sampling:
            _check_sampled(cfg, options)
            # SGLang checks this flag for its own chain sampler; NSD's verifier takes what the draft recorded.
            declare_resolution(
                server_args, "nsd_sglang.resolve_shape", speculative_use_rejection_sampling=True
            )


def _check_thresholds(cfg: Any) -> None:
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if getattr(cfg, name) != 1.0:
            option = "--" + name.replace("_", "-")
            raise OptionError(f"{option} accepts only 1.0 with NSD, got {getattr(cfg, name)}; use --nsd-threshold")


def _check_lora(cfg: Any, family: str) -> None:
    """SGLang has no LoRA beside a standalone draft, and none without pinned memory; it says so with a traceback."""
    from sglang.srt.platforms import current_platform

    from nsd_sglang.platforms.cpu import CpuPlatform

    if not (cfg.enable_lora or (cfg.lora_paths and cfg.enable_lora is None)):
        return
    if family == "standalone":
        raise OptionError("--enable-lora does not work with a standalone draft; accepted: an EAGLE, EAGLE-3 or MTP drafter")
    if isinstance(current_platform, CpuPlatform):
        raise OptionError("--enable-lora needs a GPU: SGLang keeps adapters in pinned memory")


def _check_backend(options: NSDOptions) -> None:
    """The kernel runs on a CPU only under Triton's interpreter; found out later, it would end the scheduler."""
    from sglang.srt.platforms import current_platform

    from nsd_sglang.platforms.cpu import CpuPlatform

    interpreted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
    if options.verify_backend == "triton" and isinstance(current_platform, CpuPlatform) and not interpreted:
        raise OptionError(
            "--nsd-verify-backend triton needs a GPU, or TRITON_INTERPRET=1 in the environment; accepted here: auto, torch"
        )


def _with_think_ids(cfg: Any, options: NSDOptions) -> NSDOptions:
    """The options with the tokens of the model's reasoning parser, where they are single tokens."""
    if options.think_ids is None and cfg.reasoning_parser:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        tokenizer = _tokenizer(cfg.tokenizer_path or cfg.model_path, cfg.revision, cfg)
        if tokenizer is not None:
            detector = ReasoningParser(model_type=cfg.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer).detector
            start = tokenizer.encode(detector.think_start_token, add_special_tokens=False)
            end = detector.get_think_end_token_ids(tokenizer)
            if len(start) == len(end) == 1:
                options = dataclasses.replace(options, think_ids=(start[0], end[0]))
    if options.scope == "thinking" and options.think_ids is None:
        raise OptionError(
            "--nsd-scope thinking needs --reasoning-parser with single-token markers, or --nsd-think-ids START,END"
        )
    return options


def _check_shape(cfg: Any) -> None:
    """SGLang takes the three shape options together or none of them, and asserts where one is missing."""
    steps, topk, tokens = (
        cfg.speculative_num_steps,
        cfg.speculative_eagle_topk,
        cfg.speculative_num_draft_tokens,
    )
    if cfg.speculative_adaptive or (steps is None and topk is None and tokens is None):
        return
    if steps is None or topk is None or (tokens is None and topk > 1):
        raise OptionError(
            "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens are given together or "
            f"not at all, got {steps}, {topk}, {tokens}"
        )
    if steps < 1 or topk < 1:
        raise OptionError(
            f"--speculative-num-steps and --speculative-eagle-topk accept 1 or more, got {steps} and {topk}"
        )
    if cfg.speculative_use_rejection_sampling and topk != 1:
        raise OptionError(
            f"--speculative-use-rejection-sampling requires --speculative-eagle-topk=1, got {topk}; "
            "--nsd-proposals sampled draws trees as well"
        )
    largest = 1 + topk + (steps - 1) * topk * topk
    if topk > 1 and not 2 <= tokens <= largest:
        raise OptionError(
            f"--speculative-num-draft-tokens accepts 2 to {largest} for {steps} steps of top-{topk}, got {tokens}"
        )


def _check_sampled(cfg: Any, options: NSDOptions) -> None:
    option = "--nsd-proposals sampled"
    if cfg.enable_multi_layer_eagle:
        raise OptionError(f"{option} does not work with --enable-multi-layer-eagle; use --nsd-proposals topk")
    if cfg.disaggregation_mode != "null" or cfg.pp_size != 1:
        raise OptionError(
            f"{option} needs the draft and the target in one process: --disaggregation-mode null and "
            f"--pp-size 1; use --nsd-proposals topk otherwise"
        )
    if options.candidates < cfg.speculative_eagle_topk:
        raise OptionError(
            f"--nsd-candidates accepts --speculative-eagle-topk ({cfg.speculative_eagle_topk}) or more, "
            f"got {options.candidates}"
        )


def _choose_drafter(server_args: Any, options: NSDOptions) -> drafters.Drafter:
    cfg = resolving_view(server_args)
    path = cfg.speculative_draft_model_path
    target = _config(cfg.model_path, cfg.revision, "--model-path", cfg)
    draft = None
    if path is not None and path != cfg.model_path:
        draft = _config(path, cfg.speculative_draft_model_revision, "--speculative-draft-model-path", cfg)
    chosen = drafters.resolve(options.drafter, path, draft, cfg.model_path, target)
    if draft is not None:
        _check_context(cfg, target, draft)
    if chosen.family == "standalone":
        drafters.check_tokenizers(
            path,
            _tokenizer(path, cfg.speculative_draft_model_revision, cfg),
            _tokenizer(cfg.tokenizer_path or cfg.model_path, cfg.revision, cfg),
        )
    return chosen


def _check_context(cfg: Any, target: Any, draft: Any) -> None:
    """SGLang refuses a draft with a shorter context too, but in the scheduler, once the target's weights are loaded."""
    from sglang.srt.environ import envs
    from sglang.srt.utils.hf_transformers_utils import get_context_length, get_hf_text_config
    from sglang.utils import is_in_ci

    overridden = cfg.json_model_override_args not in (None, "", "{}")
    if overridden or envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.get() or is_in_ci():
        return
    needed = cfg.context_length or get_context_length(get_hf_text_config(target))
    drafters.check_context(cfg.speculative_draft_model_path, get_context_length(get_hf_text_config(draft)), needed)


def _config(path: str, revision: str | None, option: str, cfg: Any) -> Any:
    from sglang.srt.utils.hf_transformers_utils import get_config

    if os.path.isfile(path) and not path.endswith(".gguf"):
        raise OptionError(
            f"{option} {path}: this is a file. Accepted: a local folder with a config.json, or a Hugging Face repository ID"
        )
    try:
        return get_config(path, trust_remote_code=cfg.trust_remote_code, revision=revision)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OptionError(
            f"{option} {path}: no model configuration could be read ({reason[:200]}). Accepted: a local folder with a "
            f"config.json, or a Hugging Face repository ID"
        ) from None


def _tokenizer(path: str, revision: str | None, cfg: Any) -> Any | None:
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    try:
        return get_tokenizer(
            path,
            tokenizer_mode=cfg.tokenizer_mode,
            trust_remote_code=cfg.trust_remote_code,
            tokenizer_revision=revision,
        )
    except Exception:
        return None


class _one_line:
    """From the command line, a value that is not accepted ends in one line and exit code 2 instead of a traceback."""

    def __init__(self, server_args: Any):
        self.from_command_line = server_args.__dict__.get("_nsd_command_line", False)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self.from_command_line and isinstance(error, (ValueError, NotImplementedError, AssertionError)):
            exit_with(str(error))


def exit_with(message: str) -> None:
    """End the launcher with one line on standard error and exit code 2."""
    import sys

    print(f"sglang: error: {message}", file=sys.stderr)
    raise SystemExit(2)
