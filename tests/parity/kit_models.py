"""Checkpoints that SGLang's kits can be asked with on a CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from nsd_sglang.demo.model import TOKENIZER_FILES
from tiny_models import EOS, HIDDEN, TinyModels, write_tiny_models

# A kit asks for 100,000 tokens, which a server refuses whose model has fewer positions.
WIDE_CONTEXT = 131072
THINKING_CONTEXT = 4096
THINK = ("<think>", "</think>")
# Ids that the byte tokenizer of the tiny models leaves free.
THINK_IDS = (258, 259)
# Larger logits of </think>: spans end after some ten tokens instead of hundreds.
END_GAIN = 1.25


def write_wide_models(folder: Path, tokenizer: Path, vocab: int) -> TinyModels:
    """Tiny random models with the tokenizer of the checkpoint `tokenizer` (`vocab` tokens) and a context of 131072, for kits
    that send ids of a real vocabulary and thousands of tokens, and ask for nothing that only a trained model can say."""
    models = write_tiny_models(folder)
    generator = torch.Generator().manual_seed(1)
    for path in map(Path, (models.target, models.eagle, models.standalone)):
        _edit(path, lambda config: config | {"vocab_size": vocab, "max_position_embeddings": WIDE_CONTEXT})
        weights = load_file(path / "model.safetensors")
        if "lm_head.weight" in weights:  # the EAGLE head shares the target's
            weights["model.embed_tokens.weight"] = torch.randn(vocab, HIDDEN, generator=generator)
            weights["lm_head.weight"] = 0.35 * torch.randn(vocab, HIDDEN, generator=generator)
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer / name, path / name)
    target, draft = (load_file(Path(path) / "model.safetensors") for path in (models.target, models.standalone))
    shared = {name: target[name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    save_file(draft | shared, Path(models.standalone) / "model.safetensors", metadata={"format": "pt"})
    return models


def write_thinking_models(folder: Path, eos_gain: float) -> TinyModels:
    """Tiny random models that write `<think>` and `</think>`: tokens of their vocabulary, the second one likely; a chat
    template opens the span and, with `enable_thinking` false, closes it as Qwen3's does. eos_gain: what the
    logits of the end-of-sequence token are multiplied by."""
    models = write_tiny_models(folder)
    for path in map(Path, (models.target, models.eagle, models.standalone)):
        _edit(path, lambda config: config | {"max_position_embeddings": THINKING_CONTEXT})
        _add_think_tokens(path)
        weights = load_file(path / "model.safetensors")
        if "lm_head.weight" in weights:
            weights["lm_head.weight"][THINK_IDS[0]] = 0
            weights["lm_head.weight"][THINK_IDS[1]] *= END_GAIN
            weights["lm_head.weight"][EOS] *= eos_gain
            save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return models


def _add_think_tokens(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    for content, id in zip(THINK, THINK_IDS):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        tokenizer["added_tokens"].append({"id": id, "content": content, **flags})
        tokenizer["model"]["vocab"][content] = id
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = (
        "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    )
    _edit(path, lambda config: config | {"chat_template": template}, "tokenizer_config.json")


def _edit(path: Path, change, name: str = "config.json") -> None:
    (path / name).write_text(json.dumps(change(json.loads((path / name).read_text()))))
