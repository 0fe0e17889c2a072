"""The two stock verifiers: hand-made coins, and the law of the whole output by exhausting a grid of coins."""

import itertools

import pytest
import torch

from nsd_sglang.platforms.cpu_verify import chain_speculative_sampling, tree_speculative_sampling_target_only

# A root with children 1 (token 0) and 2 (token 1), and node 3 (token 2) below node 1.
CHILD, SIBLING = torch.tensor([[1, 3, -1, -1]]), torch.tensor([[-1, 2, -1, -1]])
TREE_TOKENS = torch.tensor([[9, 0, 1, 2]])
P = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.0, 0.9], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]]])


def run(function, coins, final, p, q, tokens, child=None, sibling=None, depth=3, **kwargs):
    batch, n = tokens.shape
    predicts = torch.full((batch * n,), -7, dtype=torch.int32)
    accept = torch.full((batch, depth), -1, dtype=torch.int32)
    count = torch.empty(batch, dtype=torch.int32)
    index = torch.arange(batch * n).view(batch, n)
    links = (index, child.expand(batch, n) if child is not None else None, sibling.expand(batch, n) if sibling is not None else None)
    function(predicts, accept, count, tokens, *links, coins, final, p, q, 1.0, 1.0, True, **kwargs)
    return [predicts[accept[b, : count[b] + 1].long()].tolist() for b in range(batch)]


def tree(coins, final):
    coins = torch.tensor(coins, dtype=torch.float32)
    batch = coins.shape[0]
    p = P.repeat(batch, 1, 1)
    args = (p, torch.zeros_like(p), TREE_TOKENS.repeat(batch, 1), CHILD, SIBLING)
    return run(tree_speculative_sampling_target_only, coins, torch.tensor(final), *args)


@pytest.mark.parametrize(
    "coins, final, tokens",
    [
        ([0.49, 0.89, 0, 0], 0.5, [0, 2, 1]),  # both levels taken, bonus from node 3
        ([0.49, 0.95, 0, 0], 0.99, [0, 0]),  # below node 1: token 2 rejected, what is left is token 0
        ([0.69, 0, 0, 0], 0.3, [1, 1]),  # the coin lies in the second child's share; bonus from node 2
        ([0.71, 0, 0, 0], 0.999, [2]),  # both rejected, token 2 is all that is left
        ([0.0, 0.0, 0, 0], 0.0, [0, 2, 1]),
    ],
)
def test_tree_by_hand(coins, final, tokens):
    assert tree([coins], [final]) == [tokens]


def test_a_token_the_target_cannot_emit_is_never_taken():
    p = torch.tensor([[[0.0, 0.0, 1.0]] * 4])
    args = (p, torch.zeros_like(p), TREE_TOKENS, CHILD, SIBLING)
    assert run(tree_speculative_sampling_target_only, torch.zeros(1, 4), torch.zeros(1), *args) == [[2]]


def test_tree_output_has_the_law_of_the_target():
    grid = (torch.arange(40) + 0.5) / 40
    coins = torch.cartesian_prod(grid, grid, grid)
    both = torch.cat((coins[:, :2], torch.zeros(len(coins), 2)), 1)
    outputs = tree(both.tolist(), coins[:, 2].tolist())
    for prefix, row in (((), 0), ((0,), 1), ((1,), 2), ((0, 2), 3)):
        nexts = [o[len(prefix)] for o in outputs if tuple(o[: len(prefix)]) == prefix and len(o) > len(prefix)]
        share = torch.bincount(torch.tensor(nexts), minlength=3) / len(nexts)
        torch.testing.assert_close(share, P[0, row], atol=0.02, rtol=0)


def chain_law(p, q, grid_size, **kwargs):
    """Exact-up-to-the-grid law of (first, second) output token of a chain of two drafted ones, q integrated exactly."""
    vocab = p.shape[-1]
    grid = (torch.arange(grid_size) + 0.5) / grid_size
    coins = torch.cartesian_prod(grid, grid, grid)
    law: dict[tuple, float] = {}
    for x, y in itertools.product(range(vocab), repeat=2):
        weight = float(q[0, x] * q[1, y])
        tokens = torch.tensor([[9, x, y]]).repeat(len(coins), 1)
        # p of the second position depends on the first drafted token; the third on both.
        rows = torch.stack((p[0, 0], p[1, x], p[2, y])).repeat(len(coins), 1, 1)
        uniform = torch.cat((coins[:, :2], torch.zeros(len(coins), 1)), 1)
        draft = q.repeat(len(coins), 1, 1)
        for out in run(chain_speculative_sampling, uniform, coins[:, 2], rows, draft, tokens, **kwargs):
            law[tuple(out)] = law.get(tuple(out), 0.0) + weight / len(coins)
    return law


@pytest.mark.parametrize("block", [False, True])
def test_chain_output_has_the_law_of_the_target(block):
    generator = torch.Generator().manual_seed(3)
    p = torch.softmax(torch.randn(3, 3, 3, generator=generator), -1)
    q = torch.softmax(torch.randn(2, 3, generator=generator), -1)
    law = chain_law(p, q, 16, block_verification=block)
    first = [sum(w for o, w in law.items() if o[0] == t) for t in range(3)]
    torch.testing.assert_close(torch.tensor(first), p[0, 0], atol=0.02, rtol=0)
    for x in range(3):
        longer = {o: w for o, w in law.items() if o[0] == x and len(o) > 1}
        total = sum(longer.values())
        second = [sum(w for o, w in longer.items() if o[1] == t) / total for t in range(3)]
        if not block:  # under block verification the length of a block tells about its second token
            torch.testing.assert_close(torch.tensor(second), p[1, x], atol=0.03, rtol=0)


def test_block_verification_accepts_no_less_than_token_by_token():
    p = torch.softmax(torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(5)), -1)
    q = torch.softmax(torch.randn(2, 3, generator=torch.Generator().manual_seed(6)), -1)
    mean = [sum(len(o) * w for o, w in chain_law(p, q, 12, block_verification=b).items()) for b in (False, True)]
    assert mean[1] >= mean[0] - 0.01


def test_chain_ignores_draft_entries_that_are_no_probability():
    p = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    q = torch.tensor([[[float("nan"), 1.0]]])
    out = run(chain_speculative_sampling, torch.zeros(1, 2), torch.tensor([0.2]), p, q, torch.tensor([[9, 0]]), depth=2)
    assert out == [[0]]  # rejected although the coin is 0, and drawn from p - q = (0.5, 0)
