"""What a budget certifies: T tokens agree with a coupled exact run with probability at least (1 - epsilon)^T.

A toy model whose next token depends on the last one alone: a history is the last token and the number of children of the
node. Two runs are coupled at each position by a maximal coupling of the law that NSD emits there, which is measured by
enumeration through the verifier, and the target's law.
"""

import kernel_oracle
import pytest
import torch
from kernel_cases import tree_links
from kernel_measure import kids_of, measure
from test_verify_exact import dirichlet

from nsd_sglang.kernels.verify import Proposals, verify_tree

VOCAB, TOKENS, RUNS, EPSILON, THETA, START = 4, 6, 1200, 0.1, 0.9, 0


def emitted_laws(p, q, children, epsilon):
    """Law of the token that follows each last token at a node with `children` children, [VOCAB, VOCAB]. q None: top-k."""
    laws = torch.zeros_like(p)
    if not children:
        return p
    for last in range(VOCAB):
        drawn = kernel_oracle.draws(q[last], children) if q is not None else [(top_k(p, children)[last], 1.0)]
        rows = [None if law is None else law[last].expand(children + 1, -1) for law in (p, q)]
        for tokens, mass in drawn:
            law, _ = measure([0] * children, [0, *map(int, tokens)], *rows, theta=THETA, epsilon=epsilon)
            for (emitted, _, _), weight in law.items():
                laws[last, emitted[0]] += mass * weight
    return laws


def top_k(p, children):
    """Deterministic children: the least likely tokens first, so that SD mostly rejects them."""
    return p.argsort(-1)[:, 1 : 1 + children]


def one_round(g, parents, last, p, q, epsilon):
    """Drafts and verifies after the tokens `last` [RUNS]: the tokens of every node, and the verifier's result."""
    nodes, kids = len(parents) + 1, kids_of(parents)
    candidates = torch.zeros(RUNS, nodes, dtype=torch.int64)
    candidates[:, 0] = last
    for parent in range(nodes):
        if kids[parent]:
            here, count = candidates[:, parent], len(kids[parent])
            drawn = torch.multinomial(q[here], count, generator=g) if q is not None else top_k(p, count)[here]
            candidates[:, kids[parent]] = drawn
    first, sibling = tree_links(parents, RUNS)

    def coins(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    ids = torch.arange(VOCAB).expand(RUNS, nodes, VOCAB)
    result = verify_tree(
        candidates,
        first,
        sibling,
        p[candidates],
        coins(RUNS, nodes),
        coins(RUNS),
        torch.full((RUNS,), THETA, dtype=torch.float64),
        max_depth=nodes,
        proposals=None if q is None else Proposals(ids, q[candidates]),
        sibling_coins=coins(RUNS, nodes),
        gate_coins=coins(RUNS, nodes),
        epsilon=None if epsilon is None else torch.full((RUNS,), epsilon, dtype=torch.float64),
        backend="torch",
    )
    return candidates, result


def coupled(parents, p, q, epsilon):
    """How many of RUNS runs agree with their exact run for TOKENS tokens, and the first tokens of the exact runs."""
    g = torch.Generator().manual_seed(3)
    counts = {i: len(k) for i, k in kids_of(parents).items()}
    laws = {count: emitted_laws(p, q, count, epsilon) for count in set(counts.values())}
    last, length = torch.full((RUNS,), START), torch.zeros(RUNS, dtype=torch.int64)
    agrees, exact_first = torch.ones(RUNS, dtype=torch.bool), torch.zeros(RUNS, dtype=torch.int64)
    while (length < TOKENS).any():
        candidates, result = one_round(g, parents, last, p, q, epsilon)
        predict = result.predict.reshape(RUNS, -1).long()
        paths = result.accept_index.tolist()
        for b, drafts in enumerate(result.num_correct_drafts.tolist()):
            for flat in paths[b][: drafts + 1]:
                node = flat - b * candidates.shape[1]
                context, token = candidates[b, node], predict[b, node]
                if length[b] < TOKENS:
                    law = laws[counts[node]][context]
                    kept = torch.rand((), generator=g) * law[token] < p[context, token]
                    if length[b] == 0:
                        residual = (p[context] - law).clamp(min=0)
                        exact_first[b] = token if kept else torch.multinomial(residual, 1, generator=g)
                    agrees[b] &= kept
                length[b] += 1
                last[b] = token
    return agrees.sum().item(), torch.bincount(exact_first, minlength=VOCAB)


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("parents", [[0, 1], [0, 0, 1]], ids=["chain", "tree"])
def test_coupled_runs_agree_as_often_as_promised(parents, sampled):
    g = torch.Generator().manual_seed(1)
    p, q = dirichlet(g, VOCAB, VOCAB, alpha=1.5), dirichlet(g, VOCAB, VOCAB, alpha=0.4) if sampled else None
    promised = (1 - EPSILON) ** TOKENS
    noise = 4 * (RUNS * promised * (1 - promised)) ** 0.5
    agreed, exact_first = coupled(parents, p, q, EPSILON)
    assert agreed >= promised * RUNS - noise
    expected = p[START] * RUNS
    assert ((exact_first - expected) ** 2 / expected).sum() < 21, "the other run is exact: chi-square, 3 degrees"
    without, _ = coupled(parents, p, q, None)
    assert without < promised * RUNS - noise, "plain NSD promises nothing, and must show it here"
