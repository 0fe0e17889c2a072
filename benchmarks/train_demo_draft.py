"""Train one of the demo's draft models for SmolLM2-135M-Instruct on two CPU cores:

    python benchmarks/train_demo_draft.py {eagle,eagle3,standalone} --out DIR

- eagle: one layer over the target's last hidden state; embedding and output layer are the target's.
- eagle3: one layer over three of the target's hidden states, with its own output layer of 8192 draft tokens.
- standalone: a Llama model of its own with the target's tokenizer, narrow enough to be a small file.

The drafts learn by distillation on answers that the target samples at temperature 1 (demo_draft_data.py): the loss is
KL(p || q) plus the total variation distance 1 - sum min(p, q), which is the rate at which speculative decoding rejects,
averaged over positions of the answers (and some of the prompts) and, for the heads, over three draft steps in which the
head reads its own states. Softmax over the target's 49152 tokens is the dearest part; while training it is
replaced by one over the most frequent tokens and a fresh random draw of the others, weighted up to stand for all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

import torch
from demo_draft_data import Answers, prepare_answers
from demo_draft_models import EAGLE, EAGLE3, STANDALONE, Decoder, Head
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from nsd_sglang.demo.cache import default_cache_dir
from nsd_sglang.demo.model import prepare_target
from nsd_sglang.demo.prompts import prepare_problems

STEPS = 3  # draft steps that a head is trained and measured on
DRAFT_TOKENS = 8192  # EAGLE-3's vocabulary
FREQUENT, SAMPLED = 5120, 1024  # columns of the training softmax
BATCH_ROWS = 8
POSITIONS = 1024  # positions of a batch that enter the loss, at most
PROMPT_SHARE = 0.25  # of the prompts' positions
STANDALONE_SHAPE = {
    "hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 3
}  # fmt: skip
MUON_LR, ADAM_LR = {EAGLE: 1.5e-3, EAGLE3: 1.5e-3, STANDALONE: 3e-3}, 5e-4
WARM_UP_STEPS = 10
ARCHITECTURES = {EAGLE: "LlamaForCausalLMEagle", EAGLE3: "LlamaForCausalLMEagle3", STANDALONE: "LlamaForCausalLM"}


class Divergence(torch.autograd.Function):
    """Mean over rows of the cross entropy -sum p log q, plus 1 - sum min(p, q), for q = softmax(states @ weight.T + offset).

    states [M, D], weight [V', D], p [M, V'] (float32, rows sum to 1), offset [V'] -> the loss and sum min(p, q) [M].
    The gradient is formed in the forward pass, so that no [M, V'] tensor outlives it.
    """

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, p: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        narrow_states, narrow_weight = states.bfloat16(), weight.bfloat16()
        q = (narrow_states @ narrow_weight.T).float().add_(offset).log_softmax(-1)
        cross_entropy = -torch.dot(p.flatten(), q.flatten())
        q.exp_()
        overlap = torch.minimum(p, q).sum(-1)
        below = (q < p).float().mul_(q)
        grad = (q - p).sub_(below).add_(q.mul_(below.sum(-1, keepdim=True))).div_(len(p)).bfloat16()
        ctx.save_for_backward(grad @ narrow_weight, grad.T @ narrow_states if weight.requires_grad else None)
        ctx.mark_non_differentiable(overlap)
        return cross_entropy / len(p) + 1 - overlap.mean(), overlap

    @staticmethod
    def backward(ctx, scale: Tensor, _):
        for_states, for_weight = ctx.saved_tensors
        return scale * for_states.float(), None if for_weight is None else scale * for_weight.float(), None, None


def frequent_tokens(train: Answers, count: int, vocabulary: int) -> Tensor:
    """Ids [count], ascending, of the tokens that occur most often in the training split (smaller id first among equals)."""
    counts = torch.bincount(train.tokens, minlength=vocabulary)
    return counts.sort(descending=True, stable=True).indices[:count].sort().values


def fit(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares: weight [O, I] and bias [O] of the affine map from ``inputs`` [N, I] to ``outputs`` [N, O]."""
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).float()
    square = x.T @ x
    square += 1e-4 * square.diagonal().mean() * torch.eye(len(square))
    solution = torch.linalg.solve(square, x.T @ outputs.float())
    return solution[:-1].T.contiguous(), solution[-1].contiguous()


@torch.no_grad()
def new_draft(kind: str, target: Decoder, train: Answers) -> nn.Module:
    """A draft to train. Its first map starts as a least-squares fit, its layers as the identity."""
    config, embeddings = target.config, target.embed_tokens.weight.float()
    width = config["hidden_size"]
    if kind == STANDALONE:
        draft = Decoder({**config, **STANDALONE_SHAPE})
    else:
        ids = frequent_tokens(train, DRAFT_TOKENS, config["vocab_size"]) if kind == EAGLE3 else None
        shape = {"num_hidden_layers": 1, "tie_word_embeddings": False}
        draft = Head({**config, **shape}, kind, ids)
    for name, parameter in draft.named_parameters():
        if name.endswith("_proj.weight"):
            zero = "o_proj" in name or "down_proj" in name
            nn.init.zeros_(parameter) if zero else nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    if kind == STANDALONE:
        # The embeddings' main directions, frequent tokens first in weight.
        counts = torch.bincount(train.tokens, minlength=len(embeddings)).add(0.1)[:, None]
        basis = torch.linalg.eigh((embeddings * counts.sqrt()).T @ (embeddings * counts.sqrt())).eigenvectors
        draft.embed_tokens.weight.copy_(embeddings @ basis[:, -STANDALONE_SHAPE["hidden_size"] :])
        return draft
    tokens, features, _ = train.batch(list(range(0, len(train.prompts), max(1, len(train.prompts) // 96))))
    pairs = (tokens[:, 1:] > 0).flatten()
    now, following = features[:, :-1].flatten(0, 1)[pairs], features[:, 1:, -width:].flatten(0, 1)[pairs]
    if kind == EAGLE:
        weight, bias = fit(torch.cat([embeddings[tokens[:, 1:].flatten()[pairs]], now[:, -width:].float()], 1), following)
        draft.fc.bias.copy_(bias)
    else:
        weight, _ = fit(draft.normed(now[:, :-width].float()), following)
        draft.norm.weight.fill_(following.float().square().mean().sqrt())
        draft.lm_head.weight.copy_(embeddings[draft.draft_ids])
    draft.fc.weight.copy_(weight)
    return draft


class Columns:
    """The vocabulary columns of one training step: ``weight`` [V', D] of the target and ``offset`` [V'], the logarithm of
    how many tokens a column stands for."""

    def __init__(self, target: Decoder, frequent: Tensor, generator: torch.Generator, exact: bool):
        output = target.embed_tokens.weight
        self.ids, self.offset = frequent, torch.zeros(len(frequent))
        if not exact:
            others = torch.ones(len(output)).index_fill_(0, frequent, 0)
            drawn = torch.multinomial(others, SAMPLED, generator=generator)
            self.ids = torch.cat([frequent, drawn])
            self.offset = torch.cat([self.offset, torch.full((SAMPLED,), math.log(float(others.sum()) / SAMPLED))])
        self.weight = output[self.ids]

    def target_law(self, last: Tensor) -> Tensor:
        """p [M, V'] from the target's last hidden states [M, D]."""
        return (last @ self.weight.T).float().add_(self.offset).softmax(-1)


def step_loss(draft, kind: str, target: Decoder, batch, columns: Columns, generator) -> tuple[Tensor, Tensor]:
    """The loss of one batch and the mean overlap of each draft step [STEPS or 1]."""
    tokens, features, answered = batch
    width = target.config["hidden_size"]
    wanted = (answered == 1) | ((answered == 0) & (torch.rand(answered.shape, generator=generator) < PROMPT_SHARE))
    wanted[:, :STEPS] = False
    rows, places = wanted.nonzero(as_tuple=True)
    chosen = torch.randperm(len(rows), generator=generator)[:POSITIONS].sort().values
    rows, places = rows[chosen], places[chosen]
    p = columns.target_law(features[rows, places, -width:])
    with torch.autocast("cpu", torch.bfloat16):
        if kind == STANDALONE:
            states, output = [draft(tokens)[0]], draft.embed_tokens.weight[columns.ids]
        else:
            known = features[..., -width:] if kind == EAGLE else features[..., :-width]
            embeds = target.embed_tokens(tokens[:, 1:])
            # Entry t of step s predicts what the target's state at t + s does: STEPS steps fit behind all but the last entries.
            states = draft(known[:, :-STEPS], embeds, STEPS)
            output = draft.lm_head.weight if kind == EAGLE3 else columns.weight
    losses, overlaps = [], []
    for step, state in enumerate(states):
        entries = places - (0 if kind == STANDALONE else step + 1)
        inside = entries < state.shape[1]
        loss, overlap = Divergence.apply(state[rows[inside], entries[inside]].float(), output, p[inside], columns.offset)
        losses.append(loss)
        overlaps.append(overlap.mean())
    return torch.stack(losses).mean(), torch.stack(overlaps)


@torch.inference_mode()
def overlaps(draft, kind: str, target: Decoder, split: Answers) -> list[float]:
    """Mean sum(min(p, q)) over the whole vocabulary on the answers of ``split``, for each draft step."""
    width, total, count = target.config["hidden_size"], torch.zeros(STEPS), torch.zeros(STEPS)
    for begin in range(0, len(split.prompts), BATCH_ROWS):
        tokens, features, answered = split.batch(list(range(begin, min(begin + BATCH_ROWS, len(split.prompts)))))
        answered[:, :STEPS] = 0
        rows, places = (answered == 1).nonzero(as_tuple=True)
        p = (features[rows, places, -width:] @ target.embed_tokens.weight.T).float().softmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            if kind == STANDALONE:
                states, output = [draft(tokens)[0]], draft.embed_tokens.weight
            else:
                known = features[..., -width:] if kind == EAGLE else features[..., :-width]
                # Room for entries whose later steps fall behind the row's end; they are never read.
                embeds = nn.functional.pad(target.embed_tokens(tokens[:, 1:]), (0, 0, 0, STEPS))
                states, output = draft(known, embeds, STEPS), target.embed_tokens.weight
            if kind == EAGLE3:
                p, output = p[:, draft.draft_ids], draft.lm_head.weight
            for step, state in enumerate(states):
                entries = places - (0 if kind == STANDALONE else step + 1)
                q = (state[rows, entries].bfloat16() @ output.bfloat16().T).float().softmax(-1)
                total[step] += torch.minimum(p, q).sum()
                count[step] += len(p)
    return (total / count)[: len(states)].tolist()


def batches(train: Answers, generator: random.Random):
    """Endless batches of rows of similar length, in random order, every row once an epoch."""
    sizes = train.starts.diff().tolist()
    while True:
        order = list(range(len(sizes)))
        generator.shuffle(order)
        pool = 16 * BATCH_ROWS
        groups = [sorted(order[begin : begin + pool], key=sizes.__getitem__) for begin in range(0, len(order), pool)]
        epoch = [group[begin : begin + BATCH_ROWS] for group in groups for begin in range(0, len(group), BATCH_ROWS)]
        generator.shuffle(epoch)
        yield from (train.batch(rows) for rows in epoch)


def train_draft(draft, kind: str, target: Decoder, train: Answers, seed: int, minutes: float, steps: int | None) -> int:
    """Train in place; returns the number of steps. The learning rate falls as a half cosine over ``steps`` or, if that is
    None, over ``minutes`` by the clock (then the result depends on the machine's speed)."""
    generator, order = torch.Generator().manual_seed(seed), batches(train, random.Random(seed))
    matrices = [p for name, p in draft.named_parameters() if p.ndim == 2 and ("_proj" in name or name.startswith("fc"))]
    others = [p for p in draft.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_LR[kind], weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    exact = kind == EAGLE3
    frequent = draft.draft_ids if exact else frequent_tokens(train, FREQUENT, target.config["vocab_size"])
    bar = tqdm(total=steps, desc=f"training {kind}", unit="step", mininterval=5)
    begin, number, mean = time.monotonic(), 0, None
    while True:
        progress = number / steps if steps else (time.monotonic() - begin) / (60 * minutes)
        if progress >= 1:
            bar.close()
            return number
        rate = min(1, (number + 1) / WARM_UP_STEPS) * (0.5 + 0.5 * math.cos(math.pi * progress))
        for optimizer, peak in zip(optimizers, peaks):
            optimizer.param_groups[0]["lr"] = peak * rate
        columns = Columns(target, frequent, generator, exact)
        loss, overlap = step_loss(draft, kind, target, next(order), columns, generator)
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean = overlap if mean is None else mean.lerp(overlap, 0.05)
        number += 1
        figures = "/".join(f"{value:.3f}" for value in mean.tolist())
        bar.set_postfix_str(f"loss {loss.item():.3f}, overlap {figures}", refresh=False)
        bar.update()


def export(draft, kind: str, target: Decoder, out: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16) as SGLang loads them."""
    config = {**draft.config, "architectures": [ARCHITECTURES[kind]], "dtype": "bfloat16"}
    for name in ("_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    weights = {name: tensor.detach().bfloat16().contiguous() for name, tensor in draft.state_dict().items()}
    if kind == STANDALONE:
        weights = {f"model.{name}": tensor for name, tensor in weights.items()}
    if kind == EAGLE3:
        weights = {name.replace("layers.0", "midlayer"): tensor for name, tensor in weights.items()}
        ids = draft.draft_ids
        config |= {"draft_vocab_size": len(ids), "fc_norm": True}
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=(EAGLE, EAGLE3, STANDALONE))
    parser.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20, help="training time, sampling not included (default 20)")
    parser.add_argument("--steps", type=int, help="train this many steps instead, for a result that repeats exactly")
    parser.add_argument("--rows", type=int, default=1200, help="answers to train on (default 1200)")
    parser.add_argument("--target", type=Path, help="checkpoint of the target (default: the demo's, made on first use)")
    parser.add_argument("--data", type=Path, help="folder of the sampled answers (default: below the demo's cache)")
    parser.add_argument("--compare", type=Path, help="measure this EAGLE or EAGLE-3 head on the held-out answers too")
    args = parser.parse_args()

    from transformers import AutoTokenizer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    torch.manual_seed(args.seed)
    cache = default_cache_dir()
    path = args.target or prepare_target(cache)
    target, tokenizer = Decoder.load(path), AutoTokenizer.from_pretrained(path)
    splits = prepare_answers(args.data or cache / "answers", target, tokenizer, prepare_problems(cache), args.rows, args.seed)
    report = lambda name, draft, kind: print(  # noqa: E731
        f"{name}: held-out overlap per draft step",
        {split: [round(value, 3) for value in overlaps(draft, kind, target, splits[split])] for split in ("chat", "humaneval")},
        flush=True,
    )
    if args.compare:
        head = Head.load(args.compare)
        report(str(args.compare), head, head.kind)
    draft = new_draft(args.kind, target, splits["train"])
    report("start", draft, args.kind)
    begin = time.monotonic()
    steps = train_draft(draft, args.kind, target, splits["train"], args.seed, args.minutes, args.steps)
    print(f"{steps} steps in {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    export(draft, args.kind, target, args.out)
    report("trained", draft, args.kind)


if __name__ == "__main__":
    main()
