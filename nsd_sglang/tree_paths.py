"""Which tokens lead to a node of a draft tree.

B requests, N nodes with the root (node 0, the last committed token), D = the longest chain from the root, root included.
Nothing here waits for the device.
"""

from __future__ import annotations

import torch


def parents(retrieve_next_token: torch.Tensor, retrieve_next_sibling: torch.Tensor, topk: int) -> torch.Tensor:
    """Parent of every node, int64 [B, N]; 0 for the root and for a node that no link leads to.

    Args:
        retrieve_next_token, retrieve_next_sibling: int64 [B, N], first child and next sibling of a node, -1 for none.
        topk: the most children a node has.
    """
    nodes = retrieve_next_token.shape[1]
    node = torch.arange(nodes, device=retrieve_next_token.device).expand_as(retrieve_next_token)
    parent = torch.zeros_like(torch.nn.functional.pad(retrieve_next_token, (0, 1)))  # one column to throw away
    parent.scatter_(1, torch.where(retrieve_next_token < 0, nodes, retrieve_next_token), node)
    sibling = torch.where(retrieve_next_sibling < 0, nodes, retrieve_next_sibling)
    for _ in range(topk - 1):  # each pass carries a parent one sibling further
        parent.scatter_(1, sibling, parent[:, :nodes].clone())
    return parent[:, :nodes]


def paths(parent: torch.Tensor, max_depth: int) -> torch.Tensor:
    """Nodes from every node up to the root, int64 [B, N, D]: entry 0 is the node itself, entries behind the root repeat it.

    The depth of a node, the root's being 0, is `(paths != 0).sum(-1)`.
    """
    node = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
    path = [node]
    for _ in range(max_depth - 1):
        path.append(parent.gather(1, path[-1]))
    return torch.stack(path, dim=-1)
