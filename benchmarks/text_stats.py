"""Figures of an answer's tokens that need no model."""

from __future__ import annotations

from collections.abc import Sequence


def distinct(tokens: Sequence[int], n: int) -> float | None:
    """Share of different n-grams among an answer's n-grams, in (0, 1]; None for an answer shorter than ``n``.

    Of token ids, which need no rule for words in code. It falls with the length of an answer: compare answers of one length limit.
    Source: Li et al., "A Diversity-Promoting Objective Function for Neural Conversation Models" (arXiv 1510.03055), there over
    all answers of a system; one answer at a time allows pairing by prompt.
    """
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def text_stats(tokens: Sequence[int]) -> dict[str, float | None]:
    """``distinct_1`` to ``distinct_3`` of one answer's token ids."""
    return {f"distinct_{n}": distinct(tokens, n) for n in (1, 2, 3)}
