"""Wrong kernels are told from the right one."""

import kernel_interpreter
import pytest
import torch
from kernel_cases import CHAIN, agrees, random_case

from nsd_sglang.kernels.verify import Proposals, verify_tree

KERNEL, NODE, ROW, GATES = "triton_verify.py", "triton_node.py", "triton_row.py", "triton_gates.py"

MUTANTS = {
    "gate before the SD test": [
        (
            KERNEL,
            "undecided = accepted == NODE_BLOCK\n",
            "undecided = accepted >= 0\n                by_sd = accepted\n",
        ),
        (
            KERNEL,
            "rescued += (accepted < NODE_BLOCK).to(tl.int32)\n",
            "rescued += (accepted < NODE_BLOCK).to(tl.int32)\n"
            "                    accepted = tl.where(accepted < NODE_BLOCK, accepted, by_sd)\n",
        ),
    ],
    "residual of the wrong row": [
        (
            KERNEL,
            "row_ptr = target_probs_ptr + node.to(tl.int64) * target_stride_n\n    coin",
            "row_ptr = target_probs_ptr\n    coin",
        )
    ],
    "nucleus of the draft": [
        (
            KERNEL,
            "accepted = gate(\n                        row_ptr",
            "accepted = gate(\n                        q_ptr + stored",
        ),
        (
            KERNEL,
            "tokens,\n                        masses,",
            "tokens,\n                        mass_of(tl.load(q_ptr + stored + tokens, mask=tokens >= 0, other=0.0)),",
        ),
    ],
    "<= in the sampled test": [(NODE, "u * q_here < r_here", "u * q_here <= r_here")],
    "<= in the point-mass test": [(NODE, "(coin < tl.cumsum", "(coin <= tl.cumsum")],
    "<= in the draw": [(ROW, "tl.cumsum(values, axis=0) > goal", "tl.cumsum(values, axis=0) >= goal")],
    "<= in the nucleus": [(GATES, "axis=0) < theta)", "axis=0) <= theta)")],
    "residual not reduced": [(NODE, "r = tl.maximum(r - q, 0.0)", "r = tl.maximum(r - 0.0, 0.0)")],
    "second sibling with the first one's coin": [
        (NODE, "u = tl.load(sibling_coins_ptr + pick(children, slots, rank))", "u = coin")
    ],
    "protected tokens rescued": [(GATES, "tl.load(protected_ptr + i), 0.0, masses)", "-1, masses, masses)")],
    "budget per node not per draw": [(KERNEL, "(gate_coin * reject_all < epsilon)", "(gate_coin < epsilon)")],
}


def dense(case):
    """The proposals stored in token-id order, V wide."""
    ids, q = case["proposals"]
    rows = torch.zeros_like(case["target_probs"]).scatter(2, ids, q)
    return case | {"proposals": Proposals(torch.arange(rows.shape[2]).expand(rows.shape).contiguous(), rows)}


def on_a_grid(case, steps):
    """Probabilities and coins in multiples of 1 / steps: exact sums, and coins that hit the edges."""
    g = torch.Generator().manual_seed(0)

    def rows(like):
        cuts = torch.randint(steps + 1, (*like.shape[:-1], like.shape[-1] - 1), generator=g).sort(-1).values
        ends = torch.zeros_like(cuts[..., :1])
        return torch.diff(torch.cat([ends, cuts, ends + steps], -1)) / steps

    case = case | {"target_probs": rows(case["target_probs"])}
    if "proposals" in case:
        case["proposals"] = case["proposals"]._replace(probs=rows(case["proposals"].probs))
    for name in ("coins", "final_coins"):
        case[name] = (case[name] * steps).floor() / steps
    case["threshold"] = (case["threshold"] * steps).round() / steps
    return case


def battery():
    yield on_a_grid(random_case(1, CHAIN, 8, sampled=False, batch=30), 8)
    yield on_a_grid(dense(random_case(4, [0, 1], 4, sampled=True, batch=40)), 4)
    options = dict(epsilon=True, protected=True, noise=4.0)
    yield dense(random_case(3, [0, 0, 0, 1, 1, 2, 2], 10, sampled=True, batch=40, **options))


def test_the_kernel_survives(interpreter):
    assert agrees(battery(), lambda case: interpreter(kernel_interpreter.verify, case))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(interpreter, tmp_path, name):
    number = list(MUTANTS).index(name)

    def run(case):
        if name == "nucleus of the draft" and "proposals" not in case:
            return verify_tree(**case, backend="torch")  # this mutant has no draft to look at
        return interpreter(kernel_interpreter.verify, case, tuple(MUTANTS[name]), str(tmp_path / f"mutant_{number}"))

    assert not agrees(battery(), run)
