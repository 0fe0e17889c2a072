"""Draft trees in torch: building one from the drafter's scores, and the greedy walk that verifies it.

n is the number of nodes with the root, which is node 0 and the last token already decided; nodes are numbered in draft
order, so that a parent comes before its children.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode


def build_tree_kernel_efficient(
    parent_list,
    top_scores_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    topk,
    spec_steps,
    num_verify_tokens,
    tree_mask_mode,
) -> None:
    """Link the selected draft tokens to a tree.

    Args:
        parent_list: [B, P] int64, for every expanded candidate the flat index of the candidate it grew from.
        top_scores_index: [B, n - 1] int64 ascending, flat indices of the selected candidates.
        seq_lens: [B].
        tree_mask: out, bool, at least [B * n * n]; entry (b, i, j) says whether node i sees node j.
        positions: out, [B * n].
        retrieve_index: out, [B, n], the row of a node among all B * n.
        retrieve_next_token: in all -1, out first child of a node.
        retrieve_next_sibling: in all -1, out next child of the same parent.

    Raises:
        NotImplementedError: another mask layout than QLEN_ONLY; the CPU attention asks for that one.
    """
    if tree_mask_mode != TreeMaskMode.QLEN_ONLY:
        raise NotImplementedError(f"The CPU platform builds QLEN_ONLY tree masks, not {tree_mask_mode!r}")
    batch, n = retrieve_index.shape
    parent, linked = _parents(parent_list, top_scores_index, topk)

    # Reachability in up to spec_steps edges, by squaring (identity + edge to the parent).
    sees = torch.eye(n).repeat(batch, 1, 1)
    sees[:, 1:].scatter_(2, parent[:, :, None], 1.0)
    for _ in range(spec_steps.bit_length()):
        sees = torch.bmm(sees, sees).clamp_(max=1.0)
    tree_mask[: batch * n * n].view(batch, n, n).copy_(sees)
    depth = sees.sum(-1).long() - 1
    positions.view(batch, n).copy_(depth + seq_lens[:, None])

    retrieve_index.copy_(torch.arange(batch * n).view(batch, n))
    node = torch.arange(1, n)
    siblings = (parent[:, :, None] == parent[:, None, :]) & linked[:, :, None] & linked[:, None, :]
    retrieve_next_sibling[:, 1:] = _first(siblings & (node[None, :] > node[:, None]), node)
    children = (parent[:, None, :] == torch.arange(n)[:, None]) & linked[:, None, :]
    retrieve_next_token.copy_(_first(children, node))


def _parents(parent_list, top_scores_index, topk) -> tuple[torch.Tensor, torch.Tensor]:
    """Node number of every drafted node's parent, [B, n - 1], and whether that parent was selected.

    A candidate whose parent was not selected (possible only when their scores tie) hangs below the root in the mask and
    in its position, but no link leads to it.
    """
    group = top_scores_index // topk
    from_root = group == 0
    if parent_list.shape[-1] == 0:
        return torch.zeros_like(group), from_root
    grown_from = parent_list.view(group.shape[0], -1).gather(1, group.masked_fill(from_root, 0))
    hit = top_scores_index[:, None, :] == grown_from[:, :, None]
    found = hit.any(-1) & ~from_root
    parent = torch.where(found, hit.int().argmax(-1) + 1, 0)
    return parent, found | from_root


def _first(mask: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    """Smallest `node` where `mask` [..., n - 1] holds, -1 where it holds nowhere."""
    none = node.numel() + 1
    first = torch.where(mask, node, none).amin(-1)
    return first.masked_fill(first == none, -1)


def verify_tree_greedy(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    target_predict,
    topk=-1,
):
    """Follow the target's argmax down each tree as far as it was drafted.

    Args:
        predicts: out, [B * n] int32, the token that follows each node on the path.
        accept_index: out, [B, depth], rows of the nodes on the path; what lies behind it stays.
        accept_token_num: out, [B], drafted tokens on the path.
        candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict: [B, n].

    Returns:
        (predicts, accept_index, accept_token_num)
    """
    depth = accept_index.shape[1]
    wanted = target_predict.flatten().tolist()
    tokens, rows = candidates.tolist(), retrieve_index.tolist()
    child, sibling = retrieve_next_token.tolist(), retrieve_next_sibling.tolist()
    for b, row in enumerate(rows):
        path = [row[0]]
        node = child[b][0]
        while node != -1 and len(path) < depth:
            if tokens[b][node] == wanted[path[-1]]:
                path.append(row[node])
                node = child[b][node]
            else:
                node = sibling[b][node]
        accept_index[b, : len(path)] = torch.tensor(path)
        accept_token_num[b] = len(path) - 1
        predicts[path] = torch.tensor([wanted[r] for r in path], dtype=predicts.dtype)
    return predicts, accept_index, accept_token_num
