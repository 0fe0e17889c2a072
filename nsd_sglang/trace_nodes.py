"""What a verify step did at each node it visited, as plain numbers: the content of a trace (`--nsd-trace`).

Reads the tensors of the step back to the host, so it waits for the device.

Letters in shapes: B requests, N tree nodes a request, V target vocabulary, C candidates of a recorded proposal law,
K visited nodes with children, M most children of one of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from nsd_sglang.kernels.types import Proposals, VerifyResult
from nsd_sglang.kernels.verify import verify_tree

# Rows of the vocabulary that are looked at together: bounds the extra memory at 28 bytes x V x this.
_ROWS_AT_ONCE = 32

# Most likely tokens of the target whose probabilities are kept: enough for what depends on the head of its law.
_TOP = 64

# What each field of a node says; the trace's header carries it, so that a file explains itself.
NODE_FIELDS = {
    "node": "index in the draft tree, 0 is the last committed token",
    "depth": "accepted drafts before it in this step",
    "children": "token ids of the drafts tested here, in draw order",
    "p": "target probability of each child, after every transform the request asked for",
    "q": "probability of each child in the law it was drawn from; null for top-k proposals",
    "rank": "1 + number of tokens that the target likes strictly better",
    "above": "target mass of those tokens; a child with p > 0 is in the nucleus of theta if above < theta",
    "sd": "index in children that the standard test takes, null if it rejects all",
    "kept": "index in children that was kept, null if a residual token was drawn",
    "outcome": "accepted (by the standard test), rescued (only by the nucleus) or rejected",
    "token": "token emitted after this node",
    "w": "probability, given these children, that the standard test rejects them all",
    "r": "probability of that over draws of one child, sum (q - p)+; for top-k proposals w",
    "e_s": "sum of (q - p)+ over the nucleus at the request's threshold; for top-k proposals r if a child is in it, else 0; "
    "a budget, protected tokens and a reasoning scope, which make rescues rarer, are left out of it",
    "top": f"the {_TOP} largest target probabilities, descending",
    "target_entropy": "entropy of p, nats",
    "draft_entropy": "entropy of q, nats; null for top-k proposals",
    "kl": "KL(q || p), nats; null for top-k proposals and where p is 0 at a token of q",
    "kl_reverse": "KL(p' || q), nats, with p' the target renormalised over the tokens of q; null for top-k proposals",
    "covered": "target mass of the tokens of q; null for top-k proposals",
}


class VerifyStep(NamedTuple):
    """Arguments and result of one `verify_tree` call, as `NucleusAcceptance` has them."""

    candidates: torch.Tensor  # int64 [B, N]
    retrieve_next_token: torch.Tensor  # int64 [B, N]
    retrieve_next_sibling: torch.Tensor  # int64 [B, N]
    target_probs: torch.Tensor  # float32 [B, N, V]
    coins: torch.Tensor  # float32 [B, N]
    sibling_coins: torch.Tensor | None  # float32 [B, N]
    threshold: torch.Tensor  # float32 [B]
    proposals: Proposals | None
    result: VerifyResult
    backend: str


class _Visit(NamedTuple):
    request: int
    node: int
    depth: int
    children: list[int]
    kept: int | None  # index in children
    token: int


def describe(step: VerifyStep) -> list[list[dict]]:
    """For each request its visited nodes with children, root first, as dictionaries of `NODE_FIELDS`.

    A node whose recorded law is empty (a request that came without one) has q = 0 for its children and null for what
    needs q.
    """
    described: list[list[dict]] = [[] for _ in range(step.candidates.shape[0])]
    visits = _visits(step)
    for begin in range(0, len(visits), _ROWS_AT_ONCE):
        some = visits[begin : begin + _ROWS_AT_ONCE]
        for visit, node in zip(some, _nodes(step, some)):
            described[visit.request].append(node)
    return described


def _visits(step: VerifyStep) -> list[_Visit]:
    batch, nodes = step.candidates.shape
    next_token, next_sibling = step.retrieve_next_token.tolist(), step.retrieve_next_sibling.tolist()
    paths, predict = step.result.accept_index.tolist(), step.result.predict.tolist()
    visits = []
    for request in range(batch):
        path = [flat - request * nodes for flat in paths[request] if flat >= 0]
        for depth, node in enumerate(path[: len(paths[request]) - 1]):  # at the depth limit nothing is tested
            children, child = [], next_token[request][node]
            while 0 <= child < nodes and len(children) < nodes - 1:
                children.append(child)
                child = next_sibling[request][child]
            if children:
                kept = children.index(path[depth + 1]) if depth + 1 < len(path) else None
                visits.append(_Visit(request, node, depth, children, kept, predict[request * nodes + node]))
    return visits


def _nodes(step: VerifyStep, visits: list[_Visit]) -> list[dict]:
    device, width = step.target_probs.device, max(len(visit.children) for visit in visits)
    requests = torch.tensor([visit.request for visit in visits], device=device)
    index = torch.tensor([visit.node for visit in visits], device=device)
    padded = torch.tensor([visit.children + [-1] * (width - len(visit.children)) for visit in visits], device=device)
    tokens = torch.where(padded < 0, -1, step.candidates[requests[:, None], padded.clamp_min(0)])  # [K, M]

    rows = step.target_probs[requests, index]  # [K, V]
    sd, w = _standard_test(step, requests, index, padded, tokens, rows)
    p = torch.where(torch.isfinite(rows) & (rows > 0), rows, 0)
    p_child = _at(p, tokens)
    columns = {"p": p_child, "target_entropy": torch.special.entr(p).sum(1)}
    columns["top"] = p.topk(min(_TOP, p.shape[1])).values
    theta = step.threshold[requests][:, None]
    if step.proposals is None:
        columns["above"], columns["rank"] = _above(p, p_child)
        caught = _in_nucleus(p_child, columns["above"], theta).any(1)
        columns |= {"r": w, "e_s": torch.where(caught, w, 0)}
    else:
        columns |= _law(p, p_child, tokens, theta, *(tensor[requests, index] for tensor in step.proposals))
    listed = {name: column.tolist() for name, column in columns.items()}
    return [
        _node(visit, token_row[: len(visit.children)], sd_index, reject_all, {name: row[k] for name, row in listed.items()})
        for k, (visit, token_row, sd_index, reject_all) in enumerate(zip(visits, tokens.tolist(), sd, w.tolist()))
    ]


def _node(visit: _Visit, children: list[int], sd: int | None, w: float, measured: dict) -> dict:
    rejected = visit.kept is None
    outcome = "rejected" if rejected else "accepted" if visit.kept == sd else "rescued"
    node = dict(node=visit.node, depth=visit.depth, children=children, sd=sd, kept=visit.kept)
    node |= dict(outcome=outcome, token=visit.token, w=w)
    for name in NODE_FIELDS:
        if name not in node:
            value = measured.get(name)
            by_child = isinstance(value, list) and name != "top"
            node[name] = value[: len(children)] if by_child else value
    return {name: _plain(node[name]) for name in NODE_FIELDS}


def _plain(value):
    """Six digits are enough for a diagnostic, and JSON has no infinity."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _standard_test(step, requests, index, padded, tokens, rows) -> tuple[list[int | None], torch.Tensor]:
    """What the standard test says at each node: which child it takes (None: none of them), and w, real [K].

    Asked of the verifier itself, with each node as the root of a tree of its own and the coins of the step, so that
    the answer is the verifier's to the last bit. At threshold 1 it also reports w, and a rescue tells a rejection.
    """
    count, width = tokens.shape
    real = dict(dtype=rows.dtype, device=rows.device)
    links = torch.arange(1, width + 1, device=rows.device).expand(count, -1)
    links = torch.where(padded >= 0, links, -1)  # children come first, padding last
    nothing = torch.full((count, 1), -1, device=rows.device)
    proposals, sibling_coins = step.proposals, step.sibling_coins
    if proposals is not None:
        proposals = Proposals(*(part[requests, index][:, None].expand(-1, width + 1, -1) for part in proposals))
    if sibling_coins is not None:
        own = sibling_coins[requests[:, None], padded.clamp_min(0)]
        sibling_coins = torch.cat((torch.zeros(count, 1, **real), own), dim=1)
    result = verify_tree(
        torch.cat((torch.zeros_like(nothing), tokens), dim=1),
        torch.cat((links[:, :1], nothing.expand(-1, width)), dim=1),
        torch.cat((nothing, links[:, 1:], nothing), dim=1),
        rows[:, None].expand(-1, width + 1, -1),
        step.coins[requests, index][:, None].expand(-1, width + 1),
        torch.zeros(count, **real),
        torch.ones(count, **real),
        max_depth=2,
        proposals=proposals,
        sibling_coins=sibling_coins,
        backend=step.backend,
    )
    taken = (result.accept_index[:, 1] % (width + 1) - 1).tolist()
    accepted = ((result.num_correct_drafts == 1) & (result.rescued == 0)).tolist()
    return [child if yes else None for child, yes in zip(taken, accepted)], result.tv_bound


def _law(p, p_child, tokens, theta, ids, q) -> dict[str, torch.Tensor]:
    """Fields that need the recorded law, ids and q [K, C]."""
    known = (q > 0) & (q <= 1) & (ids >= 0) & (ids < p.shape[1])
    ids, q = torch.where(known, ids, -1), torch.where(known, q, 0)
    p_law = _at(p, ids)
    above, rank = _above(p, torch.cat((p_child, p_law), dim=1))
    children = tokens.shape[1]
    excess = (q - p_law).clamp_min(0)
    covered = p_law.sum(1, keepdim=True)
    within = p_law / covered
    log_ratio = torch.where(known, q.log() - p_law.log(), 0)
    backward = torch.where(within > 0, within * (within.log() - q.log()), 0)
    empty = torch.where(known.any(1), 0.0, math.nan)  # a number that needs q is no number without one
    return {
        "q": (q[:, None] * (ids[:, None] == tokens[:, :, None])).sum(2),
        "above": above[:, :children],
        "rank": rank[:, :children],
        "r": excess.sum(1) + empty,
        "e_s": (excess * _in_nucleus(p_law, above[:, children:], theta)).sum(1) + empty,
        "draft_entropy": torch.special.entr(q).sum(1) + empty,
        "kl": (q * log_ratio).sum(1) + empty,
        "kl_reverse": backward.sum(1) + empty,
        "covered": covered[:, 0] + empty,
    }


def _at(p: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """p of tokens, 0 outside the vocabulary."""
    inside = (tokens >= 0) & (tokens < p.shape[1])
    return torch.where(inside, p.gather(1, torch.where(inside, tokens, 0)), 0)


def _in_nucleus(p: torch.Tensor, above: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    return (p > 0) & ((above < theta) | (theta >= 1))


def _above(p: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mass (float64) and 1 + number of the entries of each row of p [K, V] strictly above each of values [K, D].

    One pass over the row however many values: entries fall into the gaps between the sorted values.
    """
    bounds, order = values.sort(dim=1)
    gap = torch.searchsorted(bounds, p)  # how many values are below the entry
    shape = (p.shape[0], values.shape[1] + 1)

    def beyond(weights: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(shape, dtype=weights.dtype, device=p.device).scatter_add_(1, gap, weights)
        sums = sums.flip(1).cumsum(1).flip(1)[:, 1:]
        return torch.empty_like(sums).scatter_(1, order, sums)

    return beyond(p.double()), beyond(torch.ones_like(gap)) + 1
