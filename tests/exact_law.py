"""The exact law of the first tokens a model emits, and the chi-square of sampled answers against it."""

from __future__ import annotations

from collections import Counter

import torch
from scipy.stats import chi2


def exact_law(
    model_dir: str, prompt: list[int], length: int, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> dict[tuple[int, ...], float]:
    """Probability of every possible answer of `length` tokens, by float32 forward passes over all of them.

    The filters are SGLang's: softmax with temperature, then top-k, or top-p (the token that crosses it stays). Not both:
    SGLang's plain sampler on a CPU, which draws the first token, takes top-p of the whole distribution, its verify step
    of what top-k left.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    assert top_k is None or top_p == 1.0
    law = {(): 1.0}
    for _ in range(length):
        prefixes = list(law)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(prefix) for prefix in prefixes])).logits[:, -1].double()
        grown = {}
        for prefix, row in zip(prefixes, logits):
            probs, ids = torch.softmax(row / temperature, dim=-1).sort(descending=True)
            probs, ids = probs[:top_k] / probs[:top_k].sum(), ids[:top_k]
            keep = probs.cumsum(0) - probs < top_p
            probs = probs[keep] / probs[keep].sum()
            grown.update({(*prefix, i): law[prefix] * p for i, p in zip(ids[keep].tolist(), probs.tolist())})
        law = grown
    return law


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
