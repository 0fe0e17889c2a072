"""Sampled proposals: the draft's side.

The paper defines NSD for tokens drawn from the draft's law q. SGLang drafts by top-k, and draws only EAGLE chains, with
a full-vocabulary q for every step. Here every expanded node draws its children without replacement from the C likeliest
tokens of q, renormalised (so the truncated law *is* q), and records that law as C ids and C probabilities. The record
travels in the tensor that SGLang's own rejection sampling uses for q, `draft_probs`, so batch changes, overlap
scheduling, retraction and graph replay carry it without a line of ours.

Letters in shapes: B requests, R rows (B, or B * topk while a tree grows), V draft vocabulary, C candidates, N tree nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nsd_sglang.kernels.types import Proposals

# Separates the draft's seeded stream from the verifier's, which hashes the bare seed.
_SEED_SALT = 0x4E53445F44524146

# A node must outrank its descendants and its later siblings strictly, whatever rounding does to a product of
# probabilities, or pruning could keep a node without its parent. Each score is shrunk by a step that float32 resolves,
# and kept far enough from 0 that a path of a dozen nodes does not underflow.
_SCORE_STEP = 1e-3
_SCORE_FLOOR = 1e-3

_LARGEST_EXACT_ID = 1 << 24  # ids are stored as float32 beside their probabilities


@dataclass(frozen=True)
class SampledDrafting:
    """Draws children and records their law.

    topk: children of an expanded node. candidates: C, how many of the draft's likeliest tokens q keeps.
    """

    topk: int
    candidates: int

    @property
    def record_width(self) -> int:
        """Width of one row of `draft_probs`: topk laws of C probabilities and C ids (the root fills the first)."""
        return self.topk * 2 * self.candidates

    def law(
        self,
        logits: torch.Tensor,  # [R, V]
        temperatures: torch.Tensor,  # [B, 1]
        top_ks: torch.Tensor | None,  # int [B]
    ) -> torch.Tensor:
        """q of each row: float32 [R, 2, C], probabilities in descending order and token ids.

        q is the draft's softmax at the request's temperature over its C likeliest tokens, cut to the request's top-k:
        a greedy request (SGLang gives it temperature 1 and top-k 1) proposes its argmax with certainty.
        """
        rows, vocabulary = logits.shape
        if vocabulary > _LARGEST_EXACT_ID:
            raise ValueError(f"a draft vocabulary of {vocabulary} tokens exceeds {_LARGEST_EXACT_ID}; use topk proposals")
        kept = min(self.candidates, vocabulary)
        values, ids = torch.topk(logits, kept, dim=-1)
        probs = torch.softmax(values.float() / self._per_row(temperatures, rows), dim=-1)
        if top_ks is not None:
            rank = torch.arange(kept, device=logits.device)
            probs = probs.masked_fill(rank >= self._per_row(top_ks.view(-1, 1), rows), 0.0)
            probs = probs / probs.sum(dim=-1, keepdim=True)
        law = torch.stack((probs, ids.float()), dim=1)
        if kept < self.candidates:  # padding: probability 0, a token outside the vocabulary
            law = torch.nn.functional.pad(law, (0, self.candidates - kept))
            law[:, 1, kept:] = -1.0
        return law

    def draw(
        self,
        law: torch.Tensor,  # float32 [R, 2, C]
        *,
        sampling_seed: torch.Tensor | None,  # int64 [B]
        positions: torch.Tensor | None,  # int64 [R]
        draft_step: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw topk children of each row without replacement (exponential race, which is Gumbel-top-k).

        Returns (scores float32 [R, topk], tokens int64 [R, topk]), both in draw order. A score is an order statistic
        of q, never the probability of the token drawn: pruning that looks at the drawn token biases what is emitted.
        When q has fewer tokens than topk the rest follow in the draft's order; their probability of being drawn is 0,
        and the verifier's standard test passes over them.
        """
        probs, ids = law[:, 0], law[:, 1]
        waiting = self._exponentials(probs, sampling_seed, positions, draft_step)
        rank = torch.arange(probs.shape[1], dtype=torch.float32, device=probs.device)
        keys = torch.where(probs > 0, probs / waiting, -1.0 - rank)
        order = torch.topk(keys, self.topk, dim=-1).indices
        step = torch.arange(1, self.topk + 1, dtype=torch.float32, device=probs.device) * _SCORE_STEP
        scores = probs[:, : self.topk].clamp_min(_SCORE_FLOOR) * (1.0 - step)
        return scores, ids.gather(1, order).long()

    def record(self, law: torch.Tensor, batch_size: int) -> torch.Tensor:
        """Rows of laws as rows of `draft_probs`: float32 [R, 2, C] -> [B, record_width]; R is B or B * topk."""
        flat = law.reshape(batch_size, -1)
        return torch.nn.functional.pad(flat, (0, self.record_width - flat.shape[1]))

    def proposals(
        self,
        draft_probs: torch.Tensor,  # float32 [B, steps, record_width]
        parent_list: torch.Tensor,  # int64 [B, P]: -1 for the root, then the expanded nodes, as SGLang numbers them
        top_scores_index: torch.Tensor,  # int64 [B, N - 1]: the same number of each kept node but the root
    ) -> Proposals:
        """The law of each tree node, for the verifier. A node that was not expanded has no children to test."""
        batch = draft_probs.shape[0]
        laws = draft_probs.reshape(batch, -1, 2, self.candidates)
        rows = torch.zeros((batch, top_scores_index.shape[1] + 1), dtype=torch.int64, device=draft_probs.device)
        if parent_list.shape[1] > 1:
            match = top_scores_index.unsqueeze(2) == parent_list.unsqueeze(1)  # [B, N - 1, P]
            # Entry e >= 1 of parent_list was expanded as row topk - 1 + e: the root's step holds topk rows.
            rows[:, 1:] = torch.where(match.any(dim=2), match.int().argmax(dim=2) + self.topk - 1, 0)
        index = rows.view(batch, -1, 1, 1).expand(-1, -1, 2, self.candidates)
        chosen = laws.gather(1, index)
        return Proposals(ids=chosen[:, :, 1].long(), probs=chosen[:, :, 0])

    def _per_row(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        return values if values.shape[0] == rows else values.repeat_interleave(self.topk, dim=0)

    def _exponentials(
        self,
        probs: torch.Tensor,  # [R, C]
        sampling_seed: torch.Tensor | None,
        positions: torch.Tensor | None,
        draft_step: int,
    ) -> torch.Tensor:
        """Exp(1) variates [R, C]; with seeds a function of (seed, position, step, row of the request, rank) alone."""
        if sampling_seed is None:
            waiting = torch.empty_like(probs).exponential_(1.0)
            return waiting.clamp_min_(torch.finfo(torch.float32).tiny)
        from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32

        rows, count = probs.shape
        batch = sampling_seed.shape[0]
        width = rows // batch * count
        columns = torch.arange(width, dtype=torch.int64, device=probs.device) + draft_step * self.topk * count
        hashed = murmur_hash32(
            (sampling_seed + _SEED_SALT).to(torch.uint64),
            positions.view(batch, -1)[:, 0].to(torch.uint64),
            columns,
        )
        # Midpoints of the 2^32 cells: never 0 or 1.
        return -torch.log((hashed.to(torch.float64) + 0.5) / 2.0**32).view(rows, count).float()
