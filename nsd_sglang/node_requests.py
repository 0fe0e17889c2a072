"""Custom logit processors at the nodes of a draft tree.

A processor gets rows of logits and, for each, the request's `custom_params`, in which SGLang puts the request itself under
`__req__`. At a node it gets its own copy of the parameters, and a request whose `output_ids` are what they would be in plain
decoding when that row is about to be sampled: the committed tokens and those on the path to the node, the node included.
Everything else is read from the request. What a processor writes into the parameters or the request stays at that node: its
result has to be a function of logits, parameters and tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

REQUEST_KEY = "__req__"


class TreeTokens:
    """The tokens before each node, copied to the host when a processor first asks: that one waits for the device.

    Args:
        known: for each request what the host has of its answer (B sequences of token ids); may lag or lead the root.
        committed: int64 [B], length of the answer before the root.
        recent, recent_valid: [B, W], committed tokens behind `known`, see `RecentTokens.between`.
        tokens, path: int64 [B, N] and [B, N, D], see `tree_paths.paths`.
    """

    def __init__(
        self,
        known: Sequence[Sequence[int]],
        committed: torch.Tensor,
        recent: torch.Tensor,
        recent_valid: torch.Tensor,
        tokens: torch.Tensor,
        path: torch.Tensor,
    ):
        self._known = known
        self._shapes = (recent.shape[1], tokens.shape[1])
        parts = (committed[:, None], recent, recent_valid, tokens, path.flatten(1))
        self._device = torch.cat([part.long() for part in parts], dim=1)
        self._host: list[list[int]] | None = None
        self._before: dict[int, array] = {}

    def output_ids(self, row: int, node: int) -> array:
        """The answer up to and including a node."""
        if self._host is None:
            self._host = self._device.tolist()
        width, nodes = self._shapes
        values = self._host[row]
        tokens = values[1 + 2 * width :][:nodes]
        path = values[1 + 2 * width + nodes :]
        depth = len(path) // nodes
        below_root = [tokens[i] for i in path[node * depth : (node + 1) * depth] if i != 0]
        return self._committed(row) + array("q", [tokens[0], *reversed(below_root)])

    def _committed(self, row: int) -> array:
        if row not in self._before:
            width, values = self._shapes[0], self._host[row]
            recent = [token for token, valid in zip(values[1 : 1 + width], values[1 + width : 1 + 2 * width]) if valid]
            self._before[row] = array("q", self._known[row][: values[0]]) + array("q", recent)
        return self._before[row]


class NodeRequest:
    """A request as it stands at one node: `output_ids` are the node's, every other attribute the request's."""

    def __init__(self, request: Any, tokens: TreeTokens, row: int, node: int):
        self.__dict__.update(_request=request, _place=(tokens, row, node))

    def __getattr__(self, name: str) -> Any:
        if name != "output_ids":
            return getattr(self._request, name)
        tokens, row, node = self._place
        self.__dict__[name] = value = tokens.output_ids(row, node)
        return value


def apply_processors_(
    logits: torch.Tensor,  # float [B, N, V], changed in place
    entries: Sequence[tuple[Callable[..., torch.Tensor], Sequence[int], torch.Tensor]],
    custom_params: Sequence[Any],
    tokens: TreeTokens,
) -> None:
    """Run each processor on all nodes of its requests.

    entries: (processor, rows on the host, rows on the device as int64 [r]). custom_params: of all B requests.
    """
    nodes, vocabulary = logits.shape[1:]
    for processor, rows, indices in entries:
        selected = logits.index_select(0, indices).view(-1, vocabulary)
        at_nodes = [_at_node(custom_params[row], tokens, row, node) for row in rows for node in range(nodes)]
        changed = processor(selected, at_nodes)
        logits.index_copy_(0, indices, changed.to(logits.dtype).view(-1, nodes, vocabulary))


def _at_node(params: Any, tokens: TreeTokens, row: int, node: int) -> Any:
    if not isinstance(params, dict):
        return params
    params = dict(params)
    if REQUEST_KEY in params:
        params[REQUEST_KEY] = NodeRequest(params[REQUEST_KEY], tokens, row, node)
    return params
