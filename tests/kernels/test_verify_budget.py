"""The budget: total variation at every history, what it leaves of the gain, what it reports, and shut gates."""

import itertools

import kernel_interpreter
import kernel_oracle
import pytest
import torch
from kernel_cases import CHAIN, TREE, random_case
from kernel_measure import kids_of, measure
from test_verify_exact import check_tree, dirichlet, tied, truncated
from test_verify_triton import assert_same

from nsd_sglang.kernels.verify import verify_tree

BUDGETS = (0.0, 0.03, 0.1, 0.4, 1.0)
sampling = pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])


def histories(parents, p, q, by_coins=True, **gate):
    """Sub-law of the token emitted at every history, by enumeration of the draws and coins: {history: (node, law)}.

    A history is what was drawn and accepted above a node; the law's total is its probability. Also the mean of tv_bound.
    by_coins False: the definition in the verifier's place (test_joint_law_with_a_budget compares the two), no tv_bound.
    """
    kids = {i: k for i, k in kids_of(parents).items() if k}
    choices = [
        kernel_oracle.draws(q[i], len(k)) if q is not None else [(tuple(range(len(k))), 1.0)] for i, k in kids.items()
    ]
    found, mean_bound = {}, 0.0
    for combination in itertools.product(*choices):
        drawn = {i: tokens for i, (tokens, _) in zip(kids, combination)}
        weight, candidates = 1.0, [0] * len(p)
        for (_, mass), i in zip(combination, kids):
            weight *= mass
            for kid, token in zip(kids[i], drawn[i]):
                candidates[kid] = token
        if by_coins:
            law, bound = measure(parents, candidates, p, q, **gate)
        else:
            law, bound = kernel_oracle.sequences(0, kids_of(parents), candidates, p, q, len(p), **gate), float("inf")
        mean_bound += weight * bound
        for (emitted, drafts, _), mass in law.items():
            node, history = 0, ()
            for k, token in enumerate(emitted):
                found.setdefault(history, (node, torch.zeros_like(p[0])))[1][token] += weight * mass
                if k < drafts:
                    history += (drawn[node], token)
                    node = next(kid for kid in kids[node] if candidates[kid] == token)
    return found, mean_bound


def deviations(found, p):
    """(probability, total variation) of every history."""
    for node, law in found.values():
        yield law.sum().item(), (law / law.sum() - p[node]).abs().sum().item() / 2


@sampling
@pytest.mark.parametrize("parents, budgets", [([0], BUDGETS), ([0, 0], BUDGETS), ([0, 1], (0.1,)), ([0, 0, 1], BUDGETS), ([0, 0, 1, 1, 2], (0.1,))], ids=str)
def test_total_variation_stays_within_the_budget_at_every_history(parents, budgets, sampled):
    g = torch.Generator().manual_seed(9)
    p, q = dirichlet(g, len(parents) + 1, 3), dirichlet(g, len(parents) + 1, 3) if sampled else None
    gate = {"theta": 0.9, "by_coins": len(parents) < 3}
    for epsilon in budgets:
        found, mean_bound = histories(parents, p, q, epsilon=epsilon, **gate)
        assert abs(found[()][1].sum() - 1) < 1e-9
        spent = list(deviations(found, p))
        assert all(distance <= epsilon + 1e-6 for _, distance in spent)
        assert sum(mass * distance for mass, distance in spent) <= mean_bound + 1e-6
        assert epsilon != 0.1 or max(distance for _, distance in spent) > 0.05, "the budget is used"
    free, _ = histories(parents, p, q, **gate)
    assert max(distance for _, distance in deviations(free, p)) > 0.1, "without a budget it would not hold"


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"protected": (1,)}, {"sparse": 4}], ids=str)
def test_one_sampled_child_uses_the_whole_budget(options):
    """A rescue has probability min(E_S, epsilon), and that is the total variation; tv_bound is min(R, epsilon)."""
    spent = set()
    for seed, epsilon in itertools.product(range(4), (0.02, 0.1, 1.0)):
        g = torch.Generator().manual_seed(seed)
        p, q = dirichlet(g, 6), dirichlet(g, 6)
        if "ordered" in options:
            p = tied(g, 6)
        if "sparse" in options:
            q = truncated(q, 4)
        inside = kernel_oracle.nucleus(p, 0.8, "ordered" in options)
        inside[list(options.get("protected", ()))] = False
        surplus = (q - p).clamp(min=0)
        expected = min(surplus[inside].sum().item(), epsilon)
        rescued, emitted, mean_bound = 0.0, torch.zeros_like(p), 0.0
        for tokens, mass in kernel_oracle.draws(q, 1):
            rows = torch.stack([p, p]), torch.stack([q, q])
            law, bound = measure([0], [0, *tokens], *rows, theta=0.8, epsilon=epsilon, **options)
            mean_bound += mass * bound
            for (sequence, _, rescues), weight in law.items():
                rescued += mass * weight * rescues
                emitted[sequence[0]] += mass * weight
        assert abs(rescued - expected) < 1e-6
        assert abs((emitted - p).abs().sum().item() / 2 - expected) < 1e-6
        assert abs(mean_bound - min(surplus.sum().item(), epsilon)) < 1e-6
        spent.add("all" if expected == epsilon else "some" if expected > 0 else "none")
    assert {"all", "some"} <= spent


@sampling
def test_joint_law_with_a_budget(sampled):
    """Against the definition, several nodes at once."""
    check_tree(1, [0, 1], 4, sampled, 0.9, epsilon=0.1)
    check_tree(2, [0, 0, 1], 3, sampled, 0.9, epsilon=0.15)


@sampling
@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
def test_no_budget_is_sd_and_a_whole_one_is_no_limit(parents, sampled):
    """epsilon 0: the decisions of threshold 0, to the bit. epsilon >= 1: those without a budget."""
    for seed in range(6):
        case = random_case(seed, parents, 40, sampled=sampled, batch=10, epsilon=True)
        case["gate_coins"] = case["gate_coins"].clamp(max=1 - 2**-24)
        case["gate_coins"][::2] = case["gate_coins"][::2].round() * (1 - 2**-24)  # both ends
        for epsilon, same in ((0.0, {"threshold": torch.zeros(10)}), (1.0, {}), (7.0, {})):
            limited = verify_tree(**(case | {"epsilon": torch.full((10,), epsilon)}), backend="torch")
            plain = verify_tree(**(case | {"epsilon": None} | same), backend="torch")
            assert all(x.equal(y) for x, y in zip(limited[:4], plain[:4]))
            assert epsilon > 0 or (limited.tv_bound == 0).all()


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_shut_gate_is_sd_at_its_node(interpreter, backend):
    for seed, (sampled, parents) in enumerate(itertools.product((False, True), (CHAIN, [0, 0, 1, 1]))):
        case = random_case(seed, parents, 40, sampled=sampled, batch=4, epsilon=True)
        case["threshold"] = torch.full((4,), 0.9)
        for budget in (case["epsilon"], None):
            coins = torch.tensor([1.0, 1.5, float("inf"), float("nan")])[:, None]
            case["epsilon"], case["gate_coins"] = budget, coins.expand_as(case["coins"])
            shut = _verify(interpreter, case, backend)
            plain = verify_tree(**(case | {"threshold": torch.zeros(4)}), backend="torch")
            assert shut.predict.equal(plain.predict) and shut.accept_index.equal(plain.accept_index)
            assert (shut.rescued == 0).all() and (shut.tv_bound == 0).all()


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_gates_are_shut_node_by_node(interpreter, backend):
    """A chain of two drafts that SD rejects (p = 0.3 < 0.9) and the nucleus keeps: q is all on the draft."""
    case = random_case(0, [0, 1], 3, sampled=False, batch=4) | {"threshold": torch.full((4,), 0.9)}
    case["target_probs"] = torch.tensor([0.6, 0.3, 0.1]).expand(4, 3, 3)
    case["candidates"] = torch.ones(4, 3, dtype=torch.int64)
    case["coins"] = torch.full((4, 3), 0.9)
    case["gate_coins"] = torch.tensor([[0.5, 0.5, 1.0], [0.5, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0, 1.0, 1.0]])
    result = _verify(interpreter, case, backend)
    assert result.rescued.tolist() == [2, 1, 0, 0]
    assert result.tv_bound.tolist() == pytest.approx([1.4, 0.7, 0.0, 0.0])


def _verify(interpreter, case, backend):
    if backend == "torch":
        return verify_tree(**case, backend="torch")
    return interpreter(kernel_interpreter.verify, case)


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"protected": True}], ids=str)
def test_kernel_equals_reference_with_one_child_a_node(interpreter, options):
    """Budgets and coins all over their range, many candidates in dispute: the kernel searches where the reference sums."""
    saved = 0
    for seed in range(2):
        case = random_case(seed, CHAIN, 300, sampled=True, batch=12, width=32, noise=3.0, epsilon=True, **options)
        if "protected" in options:
            case["protected"] = case["proposals"].ids[:, 0, 3:20:4].contiguous()
        g = torch.Generator().manual_seed(seed)
        case["threshold"] = 0.3 + 0.7 * torch.rand(12, generator=g)
        case["epsilon"] = 0.4 * torch.rand(12, generator=g)
        limited = assert_same(interpreter(kernel_interpreter.verify, case), case)
        saved += (verify_tree(**(case | {"epsilon": None}), backend="torch").rescued - limited.rescued).abs().sum()
        assert (limited.rescued > 0).any()
    assert saved > 0, "some budget must refuse a rescue"
