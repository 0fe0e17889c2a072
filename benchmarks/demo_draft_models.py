"""The target and the three drafts as plain PyTorch modules, with the numerics and weight names that SGLang 0.5.23 loads.

Shapes: B rows, T positions, D = hidden width, V = vocabulary. Every forward takes the rows of a batch padded on the right
and relies on causality: what stands behind a row's end never reaches the row.

- Target: SmolLM2-135M-Instruct. ``features`` are the three hidden states that SGLang captures for EAGLE-3 by default (the
  *inputs* of layers 2, n/2 and n - 3, residual included) and the last hidden state after the final norm, which EAGLE reads.
- A head's entry t pairs the target's features at token t with the embedding of token t + 1 and predicts the distribution
  of token t + 2. Later draft steps put the head's own state in place of the features and see the first step's entries up
  to t and their own predecessors, as the draft's KV cache holds them while SGLang drafts.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

EAGLE, EAGLE3, STANDALONE = "eagle", "eagle3", "standalone"
AUX_STATES = 3


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: dict, width_in: int):
        super().__init__()
        width, head = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head, self.theta = head, config["rope_parameters"]["rope_theta"]
        self.q_proj = nn.Linear(width_in, self.heads * head, bias=False)
        self.k_proj = nn.Linear(width_in, self.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width_in, self.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(self.heads * head, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, attend) -> Tensor:
        """x [B, T, width_in], positions [B or 1, T]; ``attend(q, k, v)`` -> [B, heads, T, head] sees the rotated heads."""
        split = lambda y, n: y.unflatten(-1, (n, self.head)).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q_proj(x), self.heads), split(self.k_proj(x), self.kv_heads), split(self.v_proj(x), self.kv_heads)
        frequency = self.theta ** (-torch.arange(0, self.head, 2, dtype=torch.float32) / self.head)
        angle = (positions[:, None, :, None] * frequency).repeat(1, 1, 1, 2)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        out = attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One Llama layer. EAGLE's has no norm before attention; EAGLE-3's attends over [norm(embedding), norm(state)]."""

    def __init__(self, config: dict, kind: str = STANDALONE):
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        if kind != EAGLE:
            self.input_layernorm = RMSNorm(width, eps)
        if kind == EAGLE3:
            self.hidden_norm = RMSNorm(width, eps)
        self.self_attn = Attention(config, 2 * width if kind == EAGLE3 else width)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = Mlp(width, config["intermediate_size"])
        self.kind = kind

    def forward(self, x: Tensor, positions: Tensor, attend, embeds: Tensor | None = None) -> Tensor:
        """x, embeds [B, T, D] -> [B, T, D], residual included."""
        if self.kind == EAGLE:
            inputs = x
        elif self.kind == EAGLE3:
            inputs = torch.cat([self.input_layernorm(embeds), self.hidden_norm(x)], -1)
        else:
            inputs = self.input_layernorm(x)
        x = x + self.self_attn(inputs, positions, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A Llama decoder: the target, or the standalone draft. Output and input embeddings are tied."""

    def __init__(self, config: dict):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    @classmethod
    def load(cls, checkpoint: Path, dtype: torch.dtype = torch.bfloat16) -> Decoder:
        with torch.device("meta"):
            model = cls(json.loads((checkpoint / "config.json").read_text()))
        weights = load_file(checkpoint / "model.safetensors")
        names = {name.removeprefix("model."): tensor.to(dtype) for name, tensor in weights.items() if "lm_head" not in name}
        model.load_state_dict(names, assign=True)
        return model.requires_grad_(False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attends=None) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> last hidden state after the final norm [B, T, D], EAGLE-3's states [B, T, 3 D] (or empty).

        ``attends[i](q, k, v)`` replaces causal attention in layer i (decoding with a cache).
        """
        count = len(self.layers)
        captured = {2, count // 2, count - 3} if count > 2 * AUX_STATES else set()
        x, aux = self.embed_tokens(tokens), []
        if positions is None:
            positions = torch.arange(tokens.shape[1])[None]
        for index, layer in enumerate(self.layers):
            if index in captured:
                aux.append(x)
            x = layer(x, positions, attends[index] if attends else causal)
        return self.norm(x), torch.cat(aux, -1) if aux else x[..., :0]


class Head(nn.Module):
    """An EAGLE or EAGLE-3 head: one layer over the target's features; the embedding is the target's.

    ``draft_ids`` [V'] (EAGLE-3): the target's id of each draft token; None: the target's output layer and vocabulary.
    """

    def __init__(self, config: dict, kind: str, draft_ids: Tensor | None = None):
        super().__init__()
        width = config["hidden_size"]
        self.config, self.kind, self.draft_ids = config, kind, draft_ids
        self.fc = nn.Linear((2 if kind == EAGLE else AUX_STATES) * width, width, bias=kind == EAGLE)
        self.layers = nn.ModuleList([Layer(config, kind)])
        if kind == EAGLE3:
            # Each captured state is normed on its own first: the first token's are larger by orders of magnitude.
            self.fc_norm = nn.ModuleList(RMSNorm(width, config["rms_norm_eps"]) for _ in range(AUX_STATES))
            self.norm = RMSNorm(width, config["rms_norm_eps"])
            self.lm_head = nn.Linear(width, len(draft_ids), bias=False)

    @classmethod
    def load(cls, checkpoint: Path) -> Head:
        """An exported head, in float32."""
        config = json.loads((checkpoint / "config.json").read_text())
        weights = load_file(checkpoint / "model.safetensors")
        kind, draft_ids = EAGLE, None
        if "d2t" in weights:
            kind, offsets = EAGLE3, weights.pop("d2t")
            draft_ids = offsets + torch.arange(len(offsets))
            del weights["t2d"]
        head = cls(config, kind, draft_ids)
        head.load_state_dict({name.replace("midlayer", "layers.0"): tensor.float() for name, tensor in weights.items()})
        return head

    def normed(self, aux: Tensor) -> Tensor:
        """EAGLE-3's input of ``fc``: aux [..., 3 D], each third normed."""
        return torch.cat([norm(part) for norm, part in zip(self.fc_norm, aux.chunk(AUX_STATES, -1))], -1)

    def forward(self, features: Tensor, embeds: Tensor, steps: int) -> list[Tensor]:
        """features [B, T, D or 3 D] of tokens 0..T-1, embeds [B, T + steps - 1, D] of tokens 1.. -> for each draft step
        the state [B, T, D] that the output layer reads; entry t of step s (from 1) predicts token t + s + 1."""
        length = features.shape[1]
        state, states, keys, values = features, [], [], []
        for step in range(steps):
            attend = _draft_attention(keys, values, length)
            positions = torch.arange(step, step + length)[None]
            embed = embeds[:, step : step + length]
            if self.kind == EAGLE:
                state = self.layers[0](self.fc(torch.cat([embed, state], -1)), positions, attend)
                states.append(state)
            else:
                state = self.layers[0](self.fc(self.normed(state)) if step == 0 else state, positions, attend, embed)
                states.append(self.norm(state))
        return states


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every position to itself and what is before it; query heads share key heads in groups."""
    return F.scaled_dot_product_attention(q, *_grouped(q, k, v), is_causal=True)


def _draft_attention(keys: list[Tensor], values: list[Tensor], length: int):
    """Attention of one draft step: appends its keys and values to those of the earlier steps, then attends to the first
    step's entries up to t and, of every later step, to entry t alone."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = _grouped(q, k, v)
        keys.append(k)
        values.append(v)
        if len(keys) == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        own = torch.eye(length, dtype=torch.bool)
        mask = torch.cat([own.new_ones(length, length).tril()] + [own] * (len(keys) - 1), 1)
        return F.scaled_dot_product_attention(q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask)

    return attend


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    repeat = q.shape[1] // k.shape[1]
    return k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin
