"""What a budget leaves of NSD's gain in acceptance, by exact enumeration through the verifier.

    python benchmarks/budget.py --epsilon 0.1 --theta 0.8

One node with 1, 2 and 3 sampled children; p and q are random laws over a few tokens. Per draw and per history follow from the
probabilities that the verifier reports without a budget; the last column is what the verifier does with one.
"""

from __future__ import annotations

import argparse
import itertools

import torch

from nsd_sglang import Proposals, verify_tree

COINS = 200  # midpoints over which a budget coin is integrated


def draws(q: torch.Tensor, count: int) -> list[tuple[tuple[int, ...], float]]:
    """Ordered draws without replacement, with their probabilities."""
    found = []
    for tokens in itertools.permutations(range(len(q)), count):
        mass, left = 1.0, 1.0
        for token in tokens:
            mass *= q[token].item() / max(left, 1e-300)
            left -= q[token].item()
        if mass > 0.0:
            found.append((tokens, mass))
    return found


def rejected(p, q, tokens, theta, epsilon, gate_coins):
    """The verifier at a node whose children SD all rejects: rescued [len(gate_coins)] and tv_bound."""
    batch, nodes = len(gate_coins), len(tokens) + 1
    real = {"dtype": p.dtype}
    # The largest coins reject whatever can be rejected; a draw that SD always accepts is never rescued.
    coins = torch.full((batch, nodes), 1 - 1e-12, **real)
    links = torch.full((batch, nodes), -1)
    first, sibling = links.clone(), links.clone()
    first[:, 0] = 1
    sibling[:, 1:-1] = torch.arange(2, nodes)
    return verify_tree(
        torch.tensor([[0, *tokens]]).expand(batch, -1),
        first,
        sibling,
        p.expand(batch, nodes, -1),
        coins,
        torch.zeros(batch, **real),
        torch.full((batch,), theta, **real),
        max_depth=2,
        proposals=Proposals(torch.arange(len(q)).expand(batch, nodes, -1), q.expand(batch, nodes, -1)),
        sibling_coins=coins,
        gate_coins=gate_coins[:, None].expand(-1, nodes),
        epsilon=None if epsilon is None else torch.full((batch,), epsilon, **real),
        backend="torch",
    )


def gains(p, q, children: int, theta: float, epsilon: float) -> tuple[float, float, float, float]:
    """Probability of a rescue: without a budget, per draw, per history, and the verifier's own with the budget."""
    plain = per_draw = measured = 0.0
    points = (torch.arange(COINS, dtype=p.dtype) + 0.5) / COINS
    for tokens, mass in draws(q, children):
        free = rejected(p, q, tokens, theta, None, points[:1])
        w = free.tv_bound.item()
        if w < 1e-9 or free.rescued.item() == 0:
            continue
        plain += mass * w
        per_draw += mass * min(w, epsilon)
        measured += mass * w * rejected(p, q, tokens, theta, epsilon, points).rescued.double().mean().item()
    return plain, per_draw, min(plain, epsilon), measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epsilon", type=float, default=0.1, help="the budget, 0 to 1 (default 0.1)")
    parser.add_argument("--theta", type=float, default=0.8, help="the nucleus threshold, 0 to 1 (default 0.8)")
    parser.add_argument("--laws", type=int, default=120, help="random pairs of p and q (default 120)")
    parser.add_argument("--vocab", type=int, default=6, help="tokens (default 6)")
    parser.add_argument("--concentration", type=float, default=0.7, help="of the Dirichlet law of p and q (default 0.7)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for children in (1, 2, 3):
        g = torch.Generator().manual_seed(arguments.seed)
        total = torch.zeros(4, dtype=torch.float64)
        for _ in range(arguments.laws):
            x = torch._standard_gamma(
                torch.full((2, arguments.vocab), arguments.concentration, dtype=torch.float64), generator=g
            )
            p, q = x / x.sum(-1, keepdim=True)
            total += torch.tensor(gains(p, q, children, arguments.theta, arguments.epsilon), dtype=torch.float64)
        plain, per_draw, per_history, measured = (total / arguments.laws).tolist()
        print(
            f"children {children}: no budget {plain:.3f}, per draw {per_draw:.3f}, per history {per_history:.3f}, "
            f"the verifier {measured:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
