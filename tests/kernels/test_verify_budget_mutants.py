"""Wrong budgets are told from the right one."""

import kernel_interpreter
import pytest
import torch
from kernel_cases import agrees, tree_links

from nsd_sglang.kernels.verify import Proposals

KERNEL, NODE, BUDGET = "triton_verify.py", "triton_node.py", "triton_budget.py"
LEFT = "left = tl.sum(open_surplus, axis=0) * rescue"

MUTANTS = {
    "per draw everywhere": (NODE, "tl.where(count == 1, surplus, -1.0)", "-1.0"),
    "per history everywhere": (NODE, "tl.where(count == 1, surplus, -1.0)", "surplus"),
    "all candidates count": (BUDGET, LEFT, "left = 0.0 * rescue\n        inside_surplus += tl.sum(open_surplus, axis=0)"),
    "the child and those above it count": (BUDGET, LEFT, "left = 0.0 * rescue"),
    "the child alone counts": (BUDGET, "tl.where(above, open_surplus, 0.0), axis=0)", "tl.where(ids == child, open_surplus, 0.0), axis=0)"),
    "candidates above one outside are outside": (BUDGET, "settled = (lanes == lane) | ~_at", "settled = (lanes >= 0) | ~_at"),
    "candidates below one inside are inside": (BUDGET, "settled = _at_or_above(", "settled = (lanes >= 0) | _at_or_above("),
    "the child outside": (BUDGET, "rescue = in_nucleus(row_ptr, child,", "rescue += 0 * in_nucleus(row_ptr, child,"),
    "protected tokens rescued": (BUDGET, "(ids != tl.load(protected_ptr + i))", "(ids >= -1)"),
    "protected candidates count": (BUDGET, "!= tl.load(protected_ptr + i))", "!= tl.where(tl.load(protected_ptr + i) == child, child, -1))"),
    "ties by falling id": (BUDGET, "(ids <= token)", "(ids >= token)"),
    "ties with half as likely": (BUDGET, "above = p >= mass", "above = p >= 0.5 * mass"),
    "<= in the budget": (BUDGET, "tl.minimum(probability, 1.0) < epsilon", "tl.minimum(probability, 1.0) <= epsilon"),
    "<= in the per-draw budget": (KERNEL, "reject_all < epsilon)", "reject_all <= epsilon)"),
    "reports w": (KERNEL, "tl.where(per_history, mean_reject, reject_all)", "tl.where(per_history, reject_all, reject_all)"),
    "a coin of 1 opens": (KERNEL, "(gate_coin < 1.0)", "(gate_coin <= 1.0)"),
    "a shut gate reports": (KERNEL, "if open_gate == 1:\n", "if gated == 1:\n"),
    "shut with a budget only": (KERNEL, "if gate_coins_ptr is not None:", "if epsilon_ptr is not None:"),
}


P = [10, 8, 6, 4, 3, 1]
Q = [1, 9, 8, 6, 5, 3]  # (q - p)+ is [0, 1, 2, 2, 2, 2], and p's mass above [0, 10, 18, 24, 28, 31]
TIED_P = [10, 6, 6, 6, 3, 1]
TIED_Q = [2, 8, 8, 8, 4, 2]  # (q - p)+ is [0, 2, 2, 2, 1, 1]


def nodes(p, q, rows, *, children=1, ordered=False, protected=None, budget=True):
    """One node a request, probabilities in 1/32; SD rejects where it can. rows: (children, theta, gate coin, epsilon),
    theta and epsilon in 1/32, so that a coin of 0.5 meets every edge exactly."""
    batch, size = len(rows), children + 1
    first, sibling = tree_links([0] * children, batch)
    drawn, theta, coins, epsilon = zip(*rows)
    case = dict(
        candidates=torch.tensor([[0, *tokens] for tokens in drawn]),
        retrieve_next_token=first,
        retrieve_next_sibling=sibling,
        target_probs=(torch.tensor(p) / 32).expand(batch, size, 6),
        coins=torch.full((batch, size), 1 - 2**-24),
        final_coins=torch.full((batch,), 0.5),
        threshold=torch.tensor(theta) / 32,
        max_depth=2,
        gate_coins=torch.tensor(coins)[:, None].expand(batch, size),
        ordered_ties=ordered,
    )
    if q is not None:
        case["proposals"] = Proposals(torch.arange(6).expand(batch, size, 6), (torch.tensor(q) / 32).expand(batch, size, 6))
        case["sibling_coins"] = case["coins"]
    if budget:
        case["epsilon"] = torch.tensor(epsilon) / 32
    if protected is not None:
        case["protected"] = torch.tensor([protected] * batch)
    return case


def battery():
    yield nodes(P, Q, [
        ([1], 25.0, 0.5, 3.0),  # E_S = 5
        ([1], 25.0, 0.5, 2.0),
        ([1], 25.0, 0.5, 2.5),
        ([2], 25.0, 0.5, 2.25),
        ([1], 20.0, 0.5, 1.0),  # E_S = 3
        ([1], 20.0, 0.5, 2.0),
        ([1], 5.0, 0.5, 8.0),  # the child is outside
        ([1], 25.0, 1.0, 8.0),
        ([1], 25.0, 0.0, 0.0),
    ])  # fmt: skip
    yield nodes(P, Q, [([1], 25.0, 0.5, 2.0), ([3], 25.0, 0.5, 8.0)], protected=[-1, 3])
    for ordered in (True, False):
        yield nodes(TIED_P, TIED_Q, [([2], 20.0, 0.5, epsilon) for epsilon in (1.75, 2.5, 3.5)], ordered=ordered)
    yield nodes(P, Q, [([1, 2], 25.0, 0.5, epsilon) for epsilon in (1.0, 32.0)], children=2)
    top_k = [([1], 25.0, 0.5, 12.0), ([1], 25.0, 0.5, 12.5), ([1], 25.0, 1.0, 32.0)]
    for budget in (True, False):
        yield nodes(P, None, top_k, budget=budget)


def test_the_kernel_survives(interpreter):
    assert agrees(battery(), lambda case: interpreter(kernel_interpreter.verify, case))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(interpreter, tmp_path, name):
    scratch = str(tmp_path / f"budget_mutant_{list(MUTANTS).index(name)}")
    assert not agrees(battery(), lambda case: interpreter(kernel_interpreter.verify, case, (MUTANTS[name],), scratch))
