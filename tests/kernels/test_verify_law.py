"""Sampled checks at a realistic size, and the claims about the order of gate and SD test."""

import kernel_oracle
import pytest
import torch
from kernel_cases import tree_links

from nsd_sglang.kernels.verify import Proposals, verify_tree

VOCAB, SAMPLES = 4096, 20000


def p_value(counts, law):
    """Chi-square of observed counts against a law, bins of less than 5 expected pooled."""
    expected = law.double() * counts.sum()
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    used = expected > 0
    assert (observed[~used] == 0).all()
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return torch.special.gammaincc((used.sum() - 1) / 2, statistic / 2).item()


def first_tokens(g, p, tokens, theta, q=None):
    """Token emitted at the root in SAMPLES independent verifications; `tokens` [SAMPLES, m] are its children."""
    children = tokens.shape[1]
    nodes = children + 1
    first, sibling = tree_links([0] * children, SAMPLES)
    case = dict(threshold=torch.full((SAMPLES,), theta), max_depth=2, backend="torch")
    if q is not None:
        probs, ids = q.topk(64)
        wide = (SAMPLES, nodes, -1)
        case["proposals"] = Proposals(ids.expand(*wide), (probs / probs.sum()).expand(*wide))
        case["sibling_coins"] = torch.rand(SAMPLES, nodes, generator=g)
    result = verify_tree(
        torch.cat([torch.zeros(SAMPLES, 1, dtype=torch.int64), tokens], 1),
        first,
        sibling,
        p.expand(SAMPLES, nodes, -1),
        torch.rand(SAMPLES, nodes, generator=g),
        torch.rand(SAMPLES, generator=g),
        **case,
    )
    return torch.bincount(result.predict.reshape(SAMPLES, nodes)[:, 0].long(), minlength=VOCAB)


@pytest.mark.parametrize("children", [1, 3])
def test_sampled_drafting_emits_the_target_law(children):
    g = torch.Generator().manual_seed(children)
    logits = torch.randn(VOCAB, generator=g) * 3
    p = torch.softmax(logits, -1)
    q = torch.softmax(logits * 0.6 + torch.randn(VOCAB, generator=g), -1)
    probs, ids = q.topk(64)
    tokens = ids[torch.multinomial(probs.expand(SAMPLES, -1), children, generator=g)]
    assert p_value(first_tokens(g, p, tokens, 0.0, q), p) > 1e-3
    assert p_value(first_tokens(g, p, tokens, 0.9, q), p) < 1e-6, "a nucleus must show at this sample size"


@pytest.mark.parametrize("theta", [0.0, 0.6])
def test_top_k_drafting_emits_the_law_of_the_definition(theta):
    g = torch.Generator().manual_seed(7)
    p = torch.softmax(torch.randn(VOCAB, generator=g) * 3, -1)
    tokens = p.topk(40).indices[[30, 2, 9]]
    here = kernel_oracle.node(p.double(), None, tokens.tolist(), theta)
    law = kernel_oracle.emitted_first(here, tokens.tolist(), VOCAB)
    assert (here.rescue_mass > 0) == (theta > 0)
    counts = first_tokens(g, p, tokens.expand(SAMPLES, -1), theta)
    assert p_value(counts, law) > 1e-3


def naive_order(p, q, tokens, inside):
    """Acceptance and emitted law with the gate inside the loop over siblings."""
    law, reached, accepted = torch.zeros_like(p), 1.0, 0.0
    here = kernel_oracle.node(p, q, tokens, 0.0)
    for test, token in zip(here.tests, tokens):
        a = 1.0 if inside[token] else test
        law[token] += reached * a
        accepted += reached * a
        reached *= 1 - a
    return accepted, law + reached * here.residual


# children: SD accepts, NSD accepts, TV of the naive order, TV deferred (means of 150 draws, V = 6, theta = 0.8)
TABLE = {1: (0.490, 0.641, 0.151, 0.151), 2: (0.645, 0.865, 0.256, 0.220), 3: (0.720, 0.938, 0.302, 0.218)}


@pytest.mark.parametrize("children", TABLE)
def test_deferred_gate_against_the_naive_order(children):
    g = torch.Generator().manual_seed(11)
    totals, rounds = torch.zeros(4, dtype=torch.float64), 60
    for _ in range(rounds):
        x = torch._standard_gamma(torch.full((2, 6), 0.7, dtype=torch.float64), generator=g)
        p, q = x / x.sum(-1, keepdim=True)
        inside = kernel_oracle.nucleus(p, 0.8, False)
        laws, numbers = torch.zeros(2, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for tokens, mass in kernel_oracle.draws(q, children):
            here = kernel_oracle.node(p, q, tokens, 0.8)
            naive_accepts, naive_law = naive_order(p, q, tokens, inside)
            sd_accepts = 1 - here.reject_all
            assert abs(sd_accepts + here.rescue_mass - naive_accepts) < 1e-9, "the same events"
            numbers += mass * torch.tensor([sd_accepts, naive_accepts, here.rescue_mass], dtype=torch.float64)
            laws[0] += mass * naive_law
            laws[1] += mass * kernel_oracle.emitted_first(here, tokens, 6)
        naive, deferred = ((laws - p).abs().sum(-1) / 2).tolist()
        assert deferred <= naive + 1e-9
        assert deferred <= numbers[2] + 1e-9
        totals += torch.tensor([numbers[0], numbers[1], naive, deferred], dtype=torch.float64)
    for mean, printed in zip((totals / rounds).tolist(), TABLE[children]):
        assert abs(mean - printed) < 0.05


@pytest.mark.parametrize("children", [1, 2])
def test_per_draw_budget_holds_at_every_history(children):
    g = torch.Generator().manual_seed(12)
    largest = 0.0
    for _ in range(60):
        x = torch._standard_gamma(torch.full((2, 6), 0.7, dtype=torch.float64), generator=g)
        p, q = x / x.sum(-1, keepdim=True)
        law = torch.zeros(6, dtype=torch.float64)
        for tokens, mass in kernel_oracle.draws(q, children):
            law += mass * kernel_oracle.emitted_first(kernel_oracle.node(p, q, tokens, 0.8, 0.1), tokens, 6)
        distance = (law - p).abs().sum().item() / 2
        assert distance <= 0.1 + 1e-9
        largest = max(largest, distance)
    assert largest > 0.06, "the budget is used"
