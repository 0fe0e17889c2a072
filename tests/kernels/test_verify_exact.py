"""The law that verify_tree emits, integrated exactly over its coins, against the definitions."""

import kernel_oracle
import pytest
import torch
from kernel_measure import assert_same_law, kids_of, measure

THETAS = [0.0, 0.3, 0.8, 0.95, 1.0]


def dirichlet(g, *shape, alpha=0.7):
    x = torch._standard_gamma(torch.full(shape, alpha, dtype=torch.float64), generator=g)
    return x / x.sum(-1, keepdim=True)


def tied(g, *shape):
    """Probabilities on a coarse grid: ties, zeros and sums that hit a threshold exactly."""
    x = torch.randint(0, 4, shape, generator=g).double()
    x[..., 0] += 1
    return x / x.sum(-1, keepdim=True)


def truncated(q, width):
    kept = torch.zeros_like(q).scatter(-1, q.topk(width).indices, 1.0) * q
    return kept / kept.sum(-1, keepdim=True)


def draw_children(g, parents, p, q):
    """Candidates of every node; a deterministic rule (the likeliest of a perturbed p) if q is None."""
    candidates = [0] * len(p)
    for parent, kids in kids_of(parents).items():
        if kids:
            law = q[parent] if q is not None else torch.full_like(p[parent], 1.0)
            drawn = torch.multinomial(law, len(kids), generator=g).tolist()
            for kid, token in zip(kids, drawn):
                candidates[kid] = token
    return candidates


def check_tree(seed, parents, vocab, sampled, theta, *, sparse=None, rows=dirichlet, depth=None, **gate):
    g = torch.Generator().manual_seed(seed)
    nodes = len(parents) + 1
    p = rows(g, nodes, vocab)
    q = dirichlet(g, nodes, vocab) if sampled else None
    if sparse:
        q = truncated(q, sparse)
    candidates = draw_children(g, parents, p, q)
    law, tv_bound = measure(parents, candidates, p, q, theta=theta, sparse=sparse, max_depth=depth, **gate)
    assert abs(sum(law.values()) - 1) < 1e-9
    expected = kernel_oracle.sequences(0, kids_of(parents), candidates, p, q, depth or nodes, theta=theta, **gate)
    assert_same_law(law, expected)
    return tv_bound


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("children", [1, 2, 3])
def test_one_node(children, sampled, theta):
    for seed in range(4):
        check_tree(seed, [0] * children, 6, sampled, theta)
        check_tree(seed, [0] * children, 5, sampled, theta, rows=tied, ordered=seed % 2 == 0)
        if sampled:
            check_tree(seed, [0] * children, 8, sampled, theta, sparse=children + 1)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("parents", [[0, 1, 2], [0, 0, 1], [0, 1, 1]], ids=str)
def test_joint_law_of_a_tree(parents, sampled, theta):
    for seed in range(2):
        check_tree(seed, parents, 4, sampled, theta, rows=(dirichlet, tied)[seed])


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
def test_depth_limit_turns_a_node_into_a_leaf(sampled):
    check_tree(0, [0, 1, 2], 4, sampled, 0.8, depth=2)
    check_tree(0, [0, 0], 4, sampled, 0.8, depth=1)


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("children", [1, 2])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4, 1.0])
def test_budget(epsilon, children, sampled):
    for seed in range(3):
        check_tree(seed, [0] * children, 5, sampled, 0.8, epsilon=epsilon)


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
def test_protected_tokens_are_only_never_rescued(sampled):
    for seed in range(6):
        check_tree(seed, [0, 0], 5, sampled, 0.9, protected=(0, 3))


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("theta", THETAS)
def test_one_hot_row_is_exact(theta, sampled):
    p = torch.zeros(3, 5, dtype=torch.float64)
    p[:, 2] = 1.0
    q = dirichlet(torch.Generator().manual_seed(1), 3, 5) if sampled else None
    for candidates in ([0, 2, 1], [0, 1, 2], [0, 1, 4]):
        law, _ = measure([0, 0], candidates, p, q, theta=theta)
        first = sum(mass for (emitted, _, rescued), mass in law.items() if emitted[0] == 2 and rescued == 0)
        assert abs(first - 1) < 1e-12


def test_nucleus_edges():
    """Ties, the argmax, zero probability, and a threshold that a cumulative sum hits exactly."""

    def rescued(p, token, theta, ordered=False):
        p = torch.tensor([p, p], dtype=torch.float64)
        law, _ = measure([0], [0, token], p, theta=theta, ordered=ordered)
        return sum(mass for (_, _, rescues), mass in law.items() if rescues) > 0

    assert rescued([0.5, 0.3, 0.2], 0, 1e-6)  # the argmax is in S for every theta > 0
    assert not rescued([0.5, 0.3, 0.2], 0, 0.0)
    assert not rescued([0.5, 0.3, 0.2], 1, 0.5) and rescued([0.5, 0.3, 0.2], 1, 0.51)
    assert not rescued([0.8, 0.2], 1, 0.8)  # 1 - theta rounds below p
    assert not rescued([0.6, 0.4, 0.0], 2, 1.0)
    ties = [0.2, 0.3, 0.2, 0.3]
    assert all(rescued(ties, token, 0.3) for token in (1, 3)) and not rescued(ties, 0, 0.6)
    assert rescued(ties, 1, 0.3, ordered=True) and not rescued(ties, 3, 0.3, ordered=True)
    assert rescued(ties, 2, 0.61) and not rescued(ties, 2, 0.61, ordered=True)
    assert rescued(ties, 0, 0.61, ordered=True) and rescued(ties, 2, 0.81, ordered=True)


def test_identities_of_one_proposal():
    """Acceptance 1 - R + E, residual R - E, total variation E; larger thresholds raise both; exact iff q <= p on S."""
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        p, q = dirichlet(g, 5), dirichlet(g, 5)
        previous = (0.0, -1.0)
        for theta in THETAS:
            surplus = (q - p).clamp(min=0)
            inside = kernel_oracle.nucleus(p, theta, False)
            rejected, excess = surplus.sum().item(), surplus[inside].sum().item()
            emitted, accepted = torch.zeros(5, dtype=torch.float64), 0.0
            for (token,), mass in kernel_oracle.draws(q, 1):
                law, _ = measure([0], [0, token], torch.stack([p, p]), torch.stack([q, q]), theta=theta)
                for (tokens, drafts, _), weight in law.items():
                    emitted[tokens[0]] += mass * weight
                    accepted += mass * weight * drafts
            distance = (emitted - p).abs().sum().item() / 2
            assert abs(accepted - (1 - rejected + excess)) < 1e-6
            assert abs(distance - excess) < 1e-6
            assert (distance < 1e-6) == bool((q <= p + 1e-6)[inside].all())
            assert accepted >= previous[0] - 1e-7 and distance >= previous[1] - 1e-7
            previous = (accepted, distance)
        assert distance > 1e-3, "theta = 1 must deviate, or the test says nothing"


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("epsilon", [None, 0.1, 0.0, 1.5])
def test_mean_tv_bound(epsilon, sampled):
    """Above the total variation at the node, and exactly the mean of min(w, epsilon)."""
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        p, q = dirichlet(g, 4), dirichlet(g, 4)
        drawn = kernel_oracle.draws(q, 2) if sampled else [((0, 2), 1.0)]
        emitted, mean_bound, expected_bound = torch.zeros(4, dtype=torch.float64), 0.0, 0.0
        rows = torch.stack([p] * 3), torch.stack([q] * 3) if sampled else None
        for tokens, mass in drawn:
            law, bound = measure([0, 0], [0, *tokens], *rows, theta=0.8, epsilon=epsilon)
            here = kernel_oracle.node(p, q if sampled else None, tokens, 0.8, epsilon)
            expected_bound += mass * (here.reject_all if epsilon is None else min(here.reject_all, epsilon))
            mean_bound += mass * bound
            for (sequence, _, _), weight in law.items():
                emitted[sequence[0]] += mass * weight
        distance = (emitted - p).abs().sum().item() / 2
        assert abs(mean_bound - expected_bound) < 1e-7
        assert distance <= mean_bound + 1e-7
        if epsilon is not None:
            assert distance <= epsilon + 1e-7
        if epsilon == 0.0:
            assert distance < 1e-7
        plain = measure([0, 0], [0, *tokens], *rows, theta=0.0)
        assert plain[1] == 0.0, "no deviation is possible without a nucleus"
        if epsilon == 0.0:
            assert_same_law(law, plain[0])
