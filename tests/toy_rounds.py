"""Speculative rounds of a toy target and drafter through the real draft and verify code, many requests at once.

Both models are Markov chains over V tokens: `target[a]` and `draft[a]` are the laws of the token after `a`. The tree is
grown by SGLang's `select_top_k_tokens` and pruned by its `organize_draft_results`, as `EagleDraftWorker.draft_forward`
does; children are drawn and laws recorded by `SampledDrafting`, and `verify_tree` decides.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.speculative.eagle_utils import organize_draft_results
from sglang.srt.speculative.spec_utils import select_top_k_tokens

from nsd_sglang.drafting import SampledDrafting
from nsd_sglang.kernels.verify import verify_tree
from nsd_sglang.platforms.cpu_trees import build_tree_kernel_efficient


def draft_round(drafting: SampledDrafting, draft: torch.Tensor, last: torch.Tensor, steps: int, nodes: int):
    """One round's trees for the last tokens int64 [B]: (candidates, next token, next sibling [B, N], proposals)."""
    batch, topk = last.shape[0], drafting.topk
    temperatures = torch.ones(batch, 1)
    seeds = {"sampling_seed": None, "positions": None}
    law = drafting.law(draft[last].log(), temperatures, None)
    records, (scores_in, tokens) = [drafting.record(law, batch)], drafting.draw(law, draft_step=0, **seeds)
    score_list, token_list, parents_list, scores = [], [], [], None
    for step in range(steps):
        flat, _, scores, info = select_top_k_tokens(step, scores_in, tokens, None, scores, topk)
        for collected, part in zip((score_list, token_list, parents_list), info):
            collected.append(part)
        if step == steps - 1:
            break
        law = drafting.law(draft[flat].log(), temperatures, None)
        records.append(drafting.record(law, batch))
        scores_in, tokens = drafting.draw(law, draft_step=step + 1, **seeds)
    parent_list, top_scores_index, drafted = organize_draft_results(score_list, token_list, parents_list, nodes)
    proposals = drafting.proposals(torch.stack(records, dim=1), parent_list, top_scores_index)

    retrieve = torch.full((3, batch, nodes), -1, dtype=torch.long)
    build_tree_kernel_efficient(
        parent_list,
        top_scores_index,
        torch.zeros(batch, dtype=torch.long),
        torch.ones(batch * nodes * nodes, dtype=torch.bool),
        torch.empty(batch * nodes, dtype=torch.long),
        *retrieve,
        topk,
        steps,
        nodes,
        TreeMaskMode.QLEN_ONLY,
    )
    return torch.cat((last[:, None], drafted), dim=1), retrieve[1], retrieve[2], proposals


def run(drafting, draft, target, start: torch.Tensor, *, steps: int, nodes: int, length: int, threshold: float = 0.0):
    """Emit `length` tokens for every start token int64 [B]; returns int64 [B, length] and the mean tokens of a round."""
    batch = start.shape[0]
    out = torch.full((batch, length + steps + 1), -1, dtype=torch.long)
    filled, last, rounds, emitted_total = torch.zeros(batch, dtype=torch.long), start.clone(), 0, 0
    while (filled < length).any():
        candidates, next_token, next_sibling, proposals = draft_round(drafting, draft, last, steps, nodes)
        result = verify_tree(
            candidates,
            next_token,
            next_sibling,
            target[candidates],
            torch.rand(batch, nodes),
            torch.rand(batch),
            torch.full((batch,), threshold),
            max_depth=steps + 1,
            proposals=proposals,
            sibling_coins=torch.rand(batch, nodes),
        )
        taken = result.num_correct_drafts.long() + 1
        tokens = result.predict.long()[result.accept_index.clamp_min(0).long()]
        for b in (filled < length).nonzero().flatten().tolist():
            count = taken[b].item()
            room = min(count, out.shape[1] - filled[b].item())
            out[b, filled[b] : filled[b] + room] = tokens[b, :room]
            filled[b] += room
            last[b] = tokens[b, count - 1]
        rounds, emitted_total = rounds + batch, emitted_total + taken.sum().item()
    return out[:, :length], emitted_total / rounds
