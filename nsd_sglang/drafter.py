"""Which family of SGLang's workers a draft checkpoint needs, read off its configuration before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsd_sglang.options import DRAFTERS, OptionError

# --nsd-drafter -> the SGLang algorithm whose worker, pools and checks serve it. NEXTN is SGLang's own alias of EAGLE.
ALGORITHM = {"eagle": "EAGLE", "eagle3": "EAGLE3", "nextn": "EAGLE", "standalone": "STANDALONE"}

# MTP-bearing targets whose configuration does not count the layers.
_UNCOUNTED_MTP = ("Qwen3NextForCausalLM",)

_PATH = "--speculative-draft-model-path"
_ACCEPTED = "an EAGLE head, an EAGLE-3 head, or a causal language model with the target's vocabulary"


@dataclass(frozen=True)
class Drafter:
    """family: one of `ALGORITHM`; path: checkpoint of the draft (the target's own for nextn)."""

    family: str
    path: str

    @property
    def algorithm(self) -> str:
        return ALGORITHM[self.family]


def resolve(requested: str, draft_path: str | None, draft: Any | None, target_path: str, target: Any) -> Drafter:
    """Choose the drafter.

    requested: value of --nsd-drafter. draft, target: Hugging Face configurations; draft is None without a draft path.
    Raises OptionError when the checkpoint cannot serve as the requested, or as any, drafter.
    """
    if draft_path is None or draft_path == target_path:
        if requested not in ("auto", "nextn"):
            raise OptionError(f"--nsd-drafter {requested} needs {_PATH}: {_ACCEPTED}")
        if requested == "auto" and not bears_mtp(target):
            raise OptionError(
                f"{_PATH} is required: {target_path} has no MTP layers that its config.json names. Accepted: {_ACCEPTED}; "
                "or --nsd-drafter nextn for a target that has them"
            )
        return Drafter("nextn", target_path)
    found = detect(draft)
    family = found if requested == "auto" else requested
    if found is not None and ALGORITHM[found] != ALGORITHM[family]:
        raise OptionError(
            f"--nsd-drafter {requested} does not fit {draft_path}, whose architecture {_architecture(draft)!r} is of the "
            f"family {found}. Accepted: auto, {found}"
        )
    if family is None:
        raise OptionError(
            f"{_PATH} {draft_path}: cannot tell the drafter family from architecture {_architecture(draft)!r}. Accepted: "
            f"{_ACCEPTED}; or name the family with --nsd-drafter, one of {', '.join(DRAFTERS[1:])}"
        )
    if _architecture(draft).startswith("Gemma4") and "Assistant" in _architecture(draft):
        raise OptionError(f"{_PATH} {draft_path}: Gemma 4 assistant drafts are not supported by NSD. Accepted: {_ACCEPTED}")
    _check_vocabulary(family, draft_path, draft, target)
    return Drafter(family, draft_path)


def detect(config: Any) -> str | None:
    """Family of a draft checkpoint from its configuration, None when it names none.

    Heads are told by their architecture name (LlamaForCausalLMEagle, LlamaForCausalLMEagle3, DeepseekV3ForCausalLMNextN,
    Qwen3NextForCausalLMMTP); EAGLE-3 also by its reduced `draft_vocab_size`.
    """
    name = _architecture(config).lower()
    if "eagle3" in name or getattr(config, "draft_vocab_size", None):
        return "eagle3"
    if "eagle" in name:
        return "eagle"
    if "nextn" in name or name.endswith("mtp"):
        return "nextn"
    if name.endswith("forcausallm") or name.endswith("lmheadmodel"):
        return "standalone"
    return None


def bears_mtp(config: Any) -> bool:
    """Whether a target checkpoint carries multi-token-prediction layers."""
    if _architecture(config) in _UNCOUNTED_MTP:
        return True
    config = getattr(config, "text_config", None) or config
    counts = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_layers")
    return any((getattr(config, name, None) or 0) > 0 for name in counts)


def _architecture(config: Any) -> str:
    return (getattr(config, "architectures", None) or [""])[0]


def _check_vocabulary(family: str, draft_path: str, draft: Any, target: Any) -> None:
    """A head shares the target's embedding, a standalone draft its token ids: both need the target's vocabulary."""
    ours = getattr(getattr(target, "text_config", None) or target, "vocab_size", None)
    theirs = getattr(getattr(draft, "text_config", None) or draft, "vocab_size", None)
    if ours and theirs and ours != theirs and family in ("eagle", "standalone"):
        raise OptionError(
            f"{_PATH} {draft_path}: vocabulary of {theirs} tokens, the target has {ours}. "
            f"Accepted: a draft with the target's tokenizer"
        )


def check_context(draft_path: str, longest: int, needed: int) -> None:
    """longest: tokens that the draft was made for. needed: the longest prompt and answer the server takes, in tokens.

    Raises OptionError. EAGLE heads of 2048 positions under a target of many more are common.
    """
    if longest < needed:
        raise OptionError(
            f"{_PATH} {draft_path}: it was made for {longest} tokens, this server takes {needed}. Accepted: --context-length "
            f"up to {longest}, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 in the environment, to draft beyond that all the same"
        )


def check_tokenizers(draft_path: str, draft: Any | None, target: Any | None) -> None:
    """Refuse a standalone draft whose tokenizer maps tokens to other ids than the target's.

    draft, target: Hugging Face tokenizers, None where a checkpoint ships none (its ids are then taken on trust).
    """
    if draft is None or target is None:
        return
    theirs, ours = draft.get_vocab(), target.get_vocab()
    if theirs != ours:
        differing = sum(ours.get(token) != index for token, index in theirs.items())
        raise OptionError(
            f"{_PATH} {draft_path}: its tokenizer gives {differing} of {len(theirs)} tokens other ids than the target's. "
            f"Accepted: a draft with the target's tokenizer"
        )
