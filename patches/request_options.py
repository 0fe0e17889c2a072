"""A request's `nsd_*` options, prompt token ids and logit processor, checked where SGLang checks sampling parameters.

Hooks `TokenizerManager._validate_one_request(self, obj, input_ids)`: a ValueError there refuses the request alone, with HTTP
400 and the message as its reason, before the scheduler hears of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable


def install() -> None:
    """Register the hook; SGLang applies it when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request", validate_one_request, HookType.AROUND
    )


def validate_one_request(original: Callable[..., None], self: Any, obj: Any, input_ids: Any) -> None:
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    from nsd_sglang.algorithm import options_of, requested
    from nsd_sglang.body import check_processor, check_prompt, check_seeded
    from nsd_sglang.options import OptionError
    from nsd_sglang.request import PREFIX, request_control

    if requested(self.server_args):
        check_prompt(input_ids, self.model_config.vocab_size)
    original(self, obj, input_ids)
    params = {**(self.preferred_sampling_params or {}), **(getattr(obj, "sampling_params", None) or {})}
    custom = params.get("custom_params")
    if custom is not None and not isinstance(custom, Mapping):
        raise OptionError(f"custom_params accepts a JSON object, got {type(custom).__name__}")
    if requested(self.server_args):
        # It is a pickle: only SGLang's own check, above, says that this server reads those of its clients.
        check_processor(getattr(obj, "custom_logit_processor", None), CustomLogitProcessor.from_str)
        args = self.server_args
        check_seeded(params, args.enable_deterministic_inference or args.rl_on_policy_target is not None)
        request_control(custom, params.get("max_new_tokens"), options_of(self.server_args))
    elif any(str(key).startswith(PREFIX) for key in custom or ()):
        raise OptionError("custom_params.nsd_* needs a server with --speculative-algorithm NSD")
