"""Tiny random checkpoints that behave enough like real ones to test speculation on: drafts are accepted often, not always.

The target's layers disturb the embedding of the last token by about its own size, so that its next token depends on the last
token and on everything before it. The drafters know the first half: they carry the embedding through, with weak layers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 320
HIDDEN = 64
HEADS = 4
KV_HEADS = 2
MLP = 96
LAYERS = 4
BOS, EOS = 256, 257
# Layers whose input EAGLE-3 reads; SGLang captures before layer id + 1.
AUX_LAYERS = [0, 1, 2]


@dataclass(frozen=True)
class TinyModels:
    """Directories of checkpoints that share one vocabulary."""

    target: str
    eagle: str
    eagle3: str
    standalone: str


def write_tiny_models(folder: Path, seed: int = 0, layer_gain: float = 1.0, noise: float = 0.1) -> TinyModels:
    """Write a target and its three drafters below `folder`, in float32.

    layer_gain: size of what the target's layers add, relative to a first guess; more makes drafting harder.
    noise: relative noise on the standalone draft's weights, which are otherwise the target's.
    """
    generator = torch.Generator().manual_seed(seed)
    target = _target_weights(generator, layer_gain)
    standalone = {k: v + noise * v.std(correction=0) * _normal(generator, *v.shape) for k, v in target.items()}
    paths = {
        "target": _write(folder / "target", target, _config("LlamaForCausalLM", LAYERS)),
        "standalone": _write(folder / "standalone", standalone, _config("LlamaForCausalLM", LAYERS)),
        "eagle": _write(folder / "eagle", _eagle_weights(generator), _config("LlamaForCausalLMEagle", 1)),
        "eagle3": _write(folder / "eagle3", _eagle3_weights(generator, target), _eagle3_config()),
    }
    return TinyModels(**paths)


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def _layer(generator, prefix: str, gain: float, inputs: int = HIDDEN, kv_heads: int = KV_HEADS) -> dict[str, torch.Tensor]:
    kv = kv_heads * HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, inputs, 2.0),
        "self_attn.k_proj": (kv, inputs, 2.0),
        "self_attn.v_proj": (kv, inputs, 1.0),
        "self_attn.o_proj": (HIDDEN, HIDDEN, gain),
        "mlp.gate_proj": (MLP, HIDDEN, 1.0),
        "mlp.up_proj": (MLP, HIDDEN, 1.0),
        "mlp.down_proj": (HIDDEN, MLP, gain),
    }
    weights = {
        f"{prefix}.{name}.weight": _normal(generator, rows, columns) * scale / columns**0.5
        for name, (rows, columns, scale) in shapes.items()
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}.{norm}.weight"] = torch.ones(HIDDEN)
    return weights


def _target_weights(generator, gain: float) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": _normal(generator, VOCAB, HIDDEN),
        # Logits of standard deviation about 2.8: neither flat nor one-hot.
        "lm_head.weight": 0.35 * _normal(generator, VOCAB, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for i in range(LAYERS):
        weights |= _layer(generator, f"model.layers.{i}", 0.5 * gain)
    return weights


def _eagle_weights(generator) -> dict[str, torch.Tensor]:
    """fc passes the token's embedding on and takes a little of the target's hidden state."""
    fc = torch.cat((torch.eye(HIDDEN), 0.1 * torch.eye(HIDDEN)), dim=1)
    weights = _layer(generator, "layers.0", 0.1)
    del weights["layers.0.input_layernorm.weight"]
    return weights | {"fc.weight": fc, "fc.bias": torch.zeros(HIDDEN)}


def _eagle3_weights(generator, target) -> dict[str, torch.Tensor]:
    """The token reaches the output only through attention: every row attends to itself and copies its embedding."""
    weights = _layer(generator, "layers.0", 0.1, inputs=2 * HIDDEN, kv_heads=HEADS)
    copy = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), dim=1)
    weights["layers.0.self_attn.q_proj.weight"] = 1.5 * copy
    weights["layers.0.self_attn.k_proj.weight"] = 1.5 * copy
    weights["layers.0.self_attn.v_proj.weight"] = copy
    weights["layers.0.self_attn.o_proj.weight"] = torch.eye(HIDDEN)
    weights["layers.0.hidden_norm.weight"] = torch.ones(HIDDEN)
    weights["fc.weight"] = 0.02 * _normal(generator, HIDDEN, HIDDEN * len(AUX_LAYERS))
    weights["norm.weight"] = torch.ones(HIDDEN)
    weights["lm_head.weight"] = target["lm_head.weight"].clone()
    return weights


def _config(architecture: str, layers: int) -> dict:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }


def _eagle3_config() -> dict:
    config = _config("LlamaForCausalLMEagle3", 1)
    eagle_config = {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS, "use_aux_hidden_state": True}
    return config | {"num_key_value_heads": HEADS, "draft_vocab_size": VOCAB, "eagle_config": eagle_config}


def _write(path: Path, weights: dict[str, torch.Tensor], config: dict) -> str:
    path.mkdir(parents=True)
    save_file({k: v.contiguous() for k, v in weights.items()}, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2))
    _byte_tokenizer().save(str(path / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return str(path)


def _byte_tokenizer() -> Tokenizer:
    """One token per byte, no merges; ids from 258 on have no text."""
    vocab = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab | {"<s>": BOS, "</s>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer
