"""Between the scheduler, which knows what NSD did to a request, and the tokenizer process, which answers the client."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Key of SGLang's customized_info: one entry per request, see `report.NSDOutputStreamer`.
CHANNEL = "nsd"


def answer_fields(entry: Sequence[Any]) -> dict[str, Any]:
    """The meta_info fields of an answer.

    nsd_rescued: tokens that only the nucleus accepted. nsd_tv_bound: sum over positions of the bound on the total
    variation (section 3 of the specification). nsd_gated_nodes: positions where the standard test rejected every
    drafted token. nsd_threshold, nsd_epsilon: in force (a greedy request is exact: threshold 0). nsd_agreement_bound:
    see `RequestControl.agreement_bound`.
    """
    rescued, tv_bound, gated, threshold, epsilon, agreement = entry
    return {
        "nsd_rescued": rescued,
        "nsd_tv_bound": tv_bound,
        "nsd_gated_nodes": gated,
        "nsd_threshold": threshold,
        "nsd_epsilon": epsilon,
        "nsd_agreement_bound": agreement,
    }


def with_answer_fields(details: Any, meta_info: dict[str, Any]) -> Any:
    """SGLang's `SpecTokensDetails` with the answer's `nsd_*` fields; `details` itself when there are none."""
    fields = {key: value for key, value in meta_info.items() if key.startswith("nsd_")}
    if details is None or not fields:
        return details
    _allow_more_fields(type(details))
    return type(details)(**details.model_dump(), **fields)


@lru_cache(maxsize=None)
def _allow_more_fields(details: type) -> None:
    """Let SGLang's model, and the responses that embed it, carry and dump fields it does not declare. pydantic dumps a
    value by its declared class, so that a subclass of ours would lose them."""
    from sglang.srt.entrypoints.openai import protocol

    details.model_config["extra"] = "allow"
    embedding = [details, protocol.SglExt]
    embedding += [model for model in vars(protocol).values() if "sglext" in getattr(model, "model_fields", ())]
    for model in embedding:
        model.model_rebuild(force=True)
