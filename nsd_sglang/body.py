"""A request's body, checked before anything of it reaches the scheduler.

SGLang 0.5.23 checks the ranges of most sampling parameters but not their types, and some values of other fields only
when the scheduler, which every request shares, trips over them. Nothing here changes an accepted request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nsd_sglang.options import OptionError, shown

_INT64 = 2**63
# The scheduler keeps whole numbers of a batch in int32 tensors, but for these.
_INT32 = 2**31
_WIDE = ("sampling_seed", "custom_params")
# Parallel answers of one request: each is a request of its own to the scheduler.
MAX_PARALLEL = 1024


def check_body(obj: Any, fields: Mapping[str, Any], session_fields: Mapping[str, Any], vocabulary: int) -> None:
    """Check SGLang's `GenerateReqInput` before it is normalised.

    fields, session_fields: sampling and session parameters and their types. vocabulary: size of the target's. Raises
    OptionError in one line.
    """
    session = getattr(obj, "session_params", None)
    if isinstance(session, Mapping):
        _check_types("session_params", session, session_fields)
    params = getattr(obj, "sampling_params", None)
    for one in params if isinstance(params, list) else [params]:
        if one is None:
            continue
        if not isinstance(one, Mapping):
            raise OptionError(f"sampling_params accepts a JSON object, got {type(one).__name__}")
        check_sampling_params(one, fields)
    # A body of `/encode` or `/v1/embeddings` has no such field; SGLang says itself what this model cannot do.
    for value in _per_request(obj, "return_hidden_states") if hasattr(obj, "return_hidden_states") else ():
        if not isinstance(value, bool) and value != "last":
            raise OptionError(f"return_hidden_states accepts true, false or last, got {shown(value)}")
    for name, low, high in (
        ("top_logprobs_num", 0, vocabulary),
        ("logprob_start_len", -1, _INT64 - 1),
        ("priority", -(2**31), 2**31 - 1),
    ):
        for value in _per_request(obj, name):
            if value is not None and (not _is_int(value) or not low <= value <= high):
                raise OptionError(f"{name} accepts a whole number from {low} to {high}, got {shown(value)}")


def check_sampling_params(params: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Types and sizes of one request's sampling parameters; their ranges, where SGLang does not check them itself."""
    _check_types("sampling_params", params, fields)
    for name, low, high in (("n", 1, MAX_PARALLEL), ("stream_interval", 1, _INT64 - 1)):
        value = params.get(name)
        if value is not None and not low <= value <= high:
            raise OptionError(f"sampling_params.{name} accepts a whole number from {low} to {high}, got {value}")


def _check_types(where: str, params: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    import msgspec

    for name, value in params.items():
        if name not in fields:
            raise OptionError(f"{where} has no parameter {shown(name)}")
        if value is None:
            continue
        try:
            msgspec.convert(value, fields[name])
        except (msgspec.ValidationError, RecursionError) as error:
            raise OptionError(f"{where}.{name}: {str(error)[:200]}, got {shown(value)}") from None
        for number in _numbers(value):
            limit = _INT64 if name in _WIDE else _INT32
            if isinstance(number, int) and not -limit <= number < limit:
                raise OptionError(f"{where}.{name} accepts whole numbers from {-limit} to {limit - 1}, got {shown(number)}")
            if isinstance(number, float) and math.isnan(number):
                raise OptionError(f"{where}.{name} accepts numbers, got NaN")


def check_seeded(params: Mapping[str, Any], deterministic: bool) -> None:
    """deterministic: whether the server runs with --enable-deterministic-inference, whose seeded sampler asserts that no request
    has a min_p and would end the scheduler. Raises OptionError."""
    if deterministic and (params.get("min_p") or 0) > 0:
        raise OptionError(f"sampling_params.min_p accepts 0 under --enable-deterministic-inference, got {params['min_p']}")


def check_processor(serialized: Any, load: Callable[[str], Any]) -> None:
    """serialized: a request's custom logit processor, None for none. load: SGLang's reader, which the scheduler will use.
    Raises OptionError when that would fail."""
    if not serialized:
        return
    try:
        usable = callable(load(serialized))
    except Exception as error:  # whatever the pickled class raises
        raise OptionError(f"custom_logit_processor cannot be loaded: {type(error).__name__}: {str(error)[:200]}") from error
    if not usable:
        raise OptionError("custom_logit_processor accepts what CustomLogitProcessor.to_str() returns, got an object that cannot be called")


def check_prompt(input_ids: Any, vocabulary: int) -> None:
    """input_ids: token ids of one prompt, None for a prompt of embeddings. Raises OptionError."""
    if input_ids is None:
        return
    if len(input_ids) == 0:
        raise OptionError("the prompt accepts one token or more, got none")
    if not 0 <= min(input_ids) <= max(input_ids) < vocabulary:
        outside = next(token for token in input_ids if not 0 <= token < vocabulary)
        raise OptionError(f"input_ids accepts token ids from 0 to {vocabulary - 1}, got {outside}")


def _per_request(obj: Any, name: str) -> list[Any]:
    """Values of a field that a batch of prompts may give as a list, one for each."""
    value = getattr(obj, name, None)
    if not isinstance(value, list):
        return [value]
    ids = getattr(obj, "input_ids", None)
    if isinstance(getattr(obj, "text", None), list) or (isinstance(ids, list) and ids and isinstance(ids[0], list)):
        return value
    raise OptionError(f"{name} accepts a list only with a list of prompts, got {shown(value)}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(key)
            yield from _numbers(inner)
    elif isinstance(value, (list, tuple, set)):
        for inner in value:
            yield from _numbers(inner)
