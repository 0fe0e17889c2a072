"""A malformed request is refused alone, with HTTP 400, instead of ending the process that serves all of them.

Hooks, in the tokenizer process of a server that asked for NSD:
- `TokenizerManager.generate_request(self, obj, request=None)`: types and sizes of the body, before SGLang reads it;
- `TokenizerManager._create_tokenized_object(self, obj, ...)`: an error of another kind than ValueError in reading the
  sampling parameters (a stop_regex that is none, for instance) is the request's as well.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import lru_cache
from typing import Any, AsyncIterator, Callable

# What SGLang's code raises on a field of a type or length that it did not expect.
MALFORMED = (TypeError, AttributeError, LookupError, AssertionError, ArithmeticError)


def install() -> None:
    """Register the hooks; SGLang applies them when every plugin has loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager."
    HookRegistry.register(manager + "generate_request", generate_request, HookType.AROUND)
    HookRegistry.register(manager + "_create_tokenized_object", create_tokenized_object, HookType.AROUND)


async def generate_request(
    original: Callable[..., AsyncIterator[Any]], self: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    from nsd_sglang.algorithm import requested
    from nsd_sglang.body import check_body

    ours, answered = requested(self.server_args), False
    if ours:
        check_body(obj, *parameter_fields(), self.model_config.vocab_size)
    try:
        async with aclosing(original(self, obj, request)) as answers:
            async for answer in answers:
                answered = True
                yield answer
    except MALFORMED as error:
        if answered or not ours:
            raise
        raise ValueError(f"the request cannot be read: {type(error).__name__}: {str(error)[:200]}") from error


def create_tokenized_object(original: Callable[..., Any], self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    from nsd_sglang.algorithm import requested

    try:
        return original(self, obj, *args, **kwargs)
    except ValueError:
        raise
    except Exception as error:
        if not requested(self.server_args):
            raise
        raise ValueError(f"sampling_params: {type(error).__name__}: {str(error)[:200]}") from error


@lru_cache(maxsize=None)
def parameter_fields() -> tuple[dict[str, Any], dict[str, Any]]:
    """Names and types of SGLang's sampling parameters, and of its session parameters."""
    import msgspec
    from sglang.srt.managers.io_struct import SessionParams
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling, session = (
        {field.name: field.type for field in msgspec.structs.fields(struct)} for struct in (SamplingParams, SessionParams)
    )
    return sampling, session
