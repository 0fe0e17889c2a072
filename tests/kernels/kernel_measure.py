"""Exact probabilities through verify_tree itself.

A decision is monotone in its coin, so it is constant on an interval if it agrees just inside both ends. `measure` cuts
every coin at the edges it is given and evaluates both ends of every piece, half of its length each: an edge that the
verifier has elsewhere shows up as a wrong probability.
"""

import itertools

import kernel_oracle
import torch
from kernel_cases import tree_links

from nsd_sglang.kernels.verify import Proposals, verify_tree

INSIDE = 1e-9  # distance from an edge, in float64 coins


def pieces(edges):
    """Points and weights of a coin that is cut at `edges`."""
    cuts = sorted({0.0, 1.0} | {float(e) for e in edges if INSIDE * 10 < e < 1 - INSIDE * 10})
    merged = [cuts[0]] + [b for a, b in zip(cuts, cuts[1:]) if b - a > INSIDE * 10]
    merged[-1] = 1.0
    return [(x, (b - a) / 2) for a, b in zip(merged, merged[1:]) for x in (a + INSIDE, b - INSIDE)]


def measure(
    parents,
    candidates,
    p,
    q=None,
    *,
    theta,
    epsilon=None,
    protected=(),
    ordered=False,
    gate="nucleus",
    sparse=None,
    max_depth=None,
):
    """{(emitted tokens, drafts, rescues): probability} and the mean of tv_bound, for one tree and one draw of it.

    p, q float64 [N, V] (q None: point-mass proposals). `sparse` stores q as its C likeliest tokens.
    """
    nodes, vocab = p.shape
    first, sibling = tree_links(parents)
    kids = {i: [k for k, x in enumerate(parents, start=1) if x == i] for i in range(nodes)}
    final, coins, siblings, gates = set(), {}, {}, {}
    for i in range(nodes):
        final |= set(p[i].cumsum(0).tolist())
        if kids[i]:
            tokens = [candidates[k] for k in kids[i]]
            law = None if q is None else q[i]
            here = kernel_oracle.node(p[i], law, tokens, theta, epsilon, protected, ordered, gate)
            final |= set(here.residual.cumsum(0).tolist())
            coins[i] = here.tests if q is None else here.tests[:1]
            if q is not None:
                siblings |= {k: [edge] for k, edge in zip(kids[i][1:], here.tests[1:])}
            if epsilon is not None:
                gates[i] = [here.beta]
    variables = [("final", 0, pieces(final))]
    for name, edges in (("coins", coins), ("siblings", siblings), ("gates", gates)):
        variables += [(name, i, pieces(e)) for i, e in edges.items()]
    grid = list(itertools.product(*(points for _, _, points in variables)))
    batch = len(grid)
    values = {name: torch.full((batch, nodes), 0.5, dtype=torch.float64) for name in ("coins", "siblings", "gates")}
    values["final"] = torch.zeros(batch, 1, dtype=torch.float64)
    points = torch.tensor([[x for x, _ in row] for row in grid], dtype=torch.float64)
    weights = torch.tensor([[w for _, w in row] for row in grid], dtype=torch.float64).prod(1)
    for column, (name, i, _) in enumerate(variables):
        values[name][:, i] = points[:, column]

    proposals = None
    if q is not None:
        probs, ids = q.topk(sparse or vocab, -1)
        proposals = Proposals(ids.expand(batch, -1, -1), probs.expand(batch, -1, -1))
    result = verify_tree(
        torch.tensor([candidates]).expand(batch, -1),
        first.expand(batch, -1),
        sibling.expand(batch, -1),
        p.expand(batch, -1, -1),
        values["coins"],
        values["final"][:, 0],
        torch.full((batch,), theta, dtype=torch.float64),
        max_depth=max_depth or nodes,
        proposals=proposals,
        sibling_coins=None if q is None else values["siblings"],
        gate_coins=None if epsilon is None else values["gates"],
        epsilon=None if epsilon is None else torch.full((batch,), epsilon, dtype=torch.float64),
        protected=torch.tensor([[*protected, -1]]).expand(batch, -1),
        ordered_ties=ordered,
        gate=gate,
        backend="torch",
    )
    law = {}
    predict = result.predict.reshape(batch, nodes).tolist()
    rows = zip(result.accept_index.tolist(), result.num_correct_drafts.tolist(), result.rescued.tolist())
    for b, ((path, drafts, rescued), mass) in enumerate(zip(rows, weights.tolist())):
        emitted = tuple(predict[b][flat - b * nodes] for flat in path[: drafts + 1])
        outcome = (emitted, drafts, rescued)
        law[outcome] = law.get(outcome, 0.0) + mass
    return law, (weights * result.tv_bound).sum().item()


def assert_same_law(law, expected, tolerance=1e-7):
    for outcome in law.keys() | expected.keys():
        got, want = law.get(outcome, 0.0), expected.get(outcome, 0.0)
        assert abs(got - want) < tolerance, f"{outcome}: {got} instead of {want}"


def kids_of(parents):
    return {i: [k for k, x in enumerate(parents, start=1) if x == i] for i in range(len(parents) + 1)}
