"""The exact law of the first tokens a model emits, and the chi-square of sampled answers against it."""

from __future__ import annotations

from collections import Counter

import torch
from scipy.stats import chi2


def exact_law(
    model_dir: str,
    prompt: list[int],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    **penalties: float,
) -> dict[tuple[int, ...], float]:
    """Probability of every possible answer of `length` tokens, by float32 forward passes over all of them.

    Penalties as in `penalised`. The filters are those of SGLang's plain sampler on a CPU: softmax with temperature; top-k
    and top-p (the token that crosses it stays), both of the whole distribution; min-p of the largest probability.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    law = {(): 1.0}
    for _ in range(length):
        prefixes = list(law)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(prefix) for prefix in prefixes])).logits[:, -1].double()
        grown = {}
        for prefix, row in zip(prefixes, logits):
            row = penalised(row, prefix, **penalties)
            probs, ids = torch.softmax(row / temperature, dim=-1).sort(descending=True)
            keep = (probs.cumsum(0) - probs < top_p) & (probs >= min_p * probs[0])
            keep &= torch.arange(keep.numel()) < (top_k or keep.numel())
            probs, ids = probs[keep] / probs[keep].sum(), ids[keep]
            grown.update({(*prefix, i): law[prefix] * p for i, p in zip(ids.tolist(), probs.tolist())})
        law = grown
    return law


def penalised(
    logits: torch.Tensor,
    answer: tuple[int, ...] | list[int],
    *,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> torch.Tensor:
    """The logits [V] of the token after `answer`, each penalty as SGLang names it and counted over the answer."""
    counts = torch.bincount(torch.tensor(answer, dtype=torch.long), minlength=logits.shape[0])
    logits = logits - frequency_penalty * counts - presence_penalty * (counts > 0)
    scaled = torch.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)
    return torch.where(counts > 0, scaled, logits)


def chi_square_p(answers: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p value of the answers under the law; cells with fewer than 5 expected answers are pooled.

    Raises AssertionError for an answer that the law excludes.
    """
    seen_answers = Counter(answers)
    impossible = set(seen_answers) - set(law)
    assert not impossible, f"answers of probability 0: {sorted(impossible)[:5]}"
    statistic, cells, rest_expected, rest_seen = 0.0, 0, 0.0, 0
    for cell, probability in law.items():
        expected, seen = probability * len(answers), seen_answers[cell]
        if expected < 5:
            rest_expected, rest_seen = rest_expected + expected, rest_seen + seen
        else:
            statistic, cells = statistic + (seen - expected) ** 2 / expected, cells + 1
    if rest_expected > 1:
        statistic, cells = statistic + (rest_seen - rest_expected) ** 2 / rest_expected, cells + 1
    return float(chi2.sf(statistic, cells - 1))
