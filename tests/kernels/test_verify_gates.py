"""The rival rules: each against its definition by enumeration, and what all rules share."""

import kernel_interpreter
import kernel_oracle
import pytest
import torch
from kernel_cases import CHAIN, TREE, random_case
from kernel_measure import measure
from test_verify_exact import check_tree, dirichlet, tied
from test_verify_triton import assert_same

from nsd_sglang.kernels.gates import GATES
from nsd_sglang.kernels.reference_gates import RULES
from nsd_sglang.kernels.verify import verify_tree

# Parameters that keep some tokens and refuse some, per rule.
PARAMETERS = {
    "greedy-margin": (1e-6, 0.25, 0.6),
    "greedy-ratio": (1.0, 2.0, 10.0),
    "additive": (0.1, 0.5, 1.0),
    "multiplicative": (1.0, 1.5, 100.0),
    "top-m": (1, 3, 5),
    "typical": (0.9, 0.5, 0.2),
}
RIVALS = list(PARAMETERS)
LOOSEST = {name: 1e-3 if name == "typical" else GATES[name].high for name in GATES}
sampling = pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])


def test_every_gate_is_known_everywhere():
    assert list(RULES) == list(GATES) and list(GATES) == ["nucleus", *RIVALS]
    for name, gate in GATES.items():
        assert gate.accepts(gate.default) and gate.accepts(0) and not gate.accepts(float("nan")), name
        assert not gate.accepts(-0.1) and not gate.accepts(gate.high * 1.01), name
        assert all(map(gate.accepts, PARAMETERS.get(name, ()))), name
    assert not GATES["top-m"].accepts(1.5) and not GATES["multiplicative"].accepts(0.5)


@sampling
@pytest.mark.parametrize("gate", RIVALS)
def test_law_of_one_node_and_of_a_tree(gate, sampled):
    for parameter in PARAMETERS[gate]:
        for seed in range(3):
            check_tree(seed, [0] * (1 + seed), 5, sampled, parameter, gate=gate)
        for ordered in (False, True):
            check_tree(4, [0, 0], 5, sampled, parameter, rows=tied, ordered=ordered, gate=gate)
    check_tree(5, [0, 0, 1], 4, sampled, PARAMETERS[gate][1], gate=gate)
    if sampled:
        check_tree(6, [0, 0], 8, True, PARAMETERS[gate][1], sparse=3, gate=gate)


@sampling
@pytest.mark.parametrize("gate", RIVALS)
def test_budget_and_protected_tokens(gate, sampled):
    parameter = PARAMETERS[gate][2]
    check_tree(3, [0, 0], 5, sampled, parameter, epsilon=0.1, gate=gate)
    check_tree(4, [0, 0], 5, sampled, parameter, epsilon=0.0, gate=gate)
    check_tree(5, [0, 0], 5, sampled, parameter, protected=(0, 3), gate=gate)


@pytest.mark.parametrize("gate", RIVALS)
def test_tv_bound_and_budget_hold(gate):
    """Total variation at a node with two drawn children stays below the mean of tv_bound, and below epsilon."""
    largest = 0.0
    for seed, epsilon in ((0, None), (2, 0.1)):
        g = torch.Generator().manual_seed(seed)
        p, q = dirichlet(g, 4), dirichlet(g, 4)
        emitted, bound = torch.zeros(4, dtype=torch.float64), 0.0
        for tokens, mass in kernel_oracle.draws(q, 2):
            rows = torch.stack([p] * 3), torch.stack([q] * 3)
            law, tv = measure([0, 0], [0, *tokens], *rows, theta=PARAMETERS[gate][-1], epsilon=epsilon, gate=gate)
            bound += mass * tv
            for (sequence, _, _), weight in law.items():
                emitted[sequence[0]] += mass * weight
        distance = (emitted - p).abs().sum().item() / 2
        assert distance <= bound + 1e-7 and (epsilon is None or distance <= epsilon + 1e-7)
        largest = max(largest, distance)
    assert largest > 1e-3, "a rule that never deviates says nothing"


def rescues(gate, parameter, p, token, q=None):
    """Whether the draft `token`, which the SD test refuses, is kept."""
    rows = torch.tensor([p, p], dtype=torch.float64)
    q = None if q is None else torch.tensor([q, q], dtype=torch.float64)
    law, _ = measure([0], [0, token], rows, q, theta=parameter, gate=gate)
    return sum(mass for (_, _, rescued), mass in law.items() if rescued) > 0


def test_edges_of_the_rules():
    p = [0.5, 0.25, 0.25, 0.0]
    assert rescues("greedy-margin", 1e-9, p, 0) and not rescues("greedy-margin", 0.2, p, 1)
    assert rescues("greedy-margin", 0.25, p, 1)  # >=
    assert rescues("greedy-ratio", 1.0, p, 0) and not rescues("greedy-ratio", 1.9, p, 1)
    assert rescues("greedy-ratio", 2.0, p, 1)  # >=
    assert rescues("top-m", 1, p, 0) and not rescues("top-m", 1, p, 1)
    assert rescues("top-m", 2, p, 2), "tied tokens share a rank"
    flat, sharp = [0.25] * 4, [0.97, 0.01, 0.01, 0.01]
    assert rescues("typical", 0.9, flat, 3) and not rescues("typical", 0.9, sharp, 1)
    assert rescues("typical", 0.05, sharp, 1)  # 0.01 > 0.05 ** 2
    q = [0.125, 0.5, 0.375, 0.0]
    assert rescues("additive", 0.25, p, 1, q) and not rescues("additive", 0.24, p, 1, q)
    assert rescues("multiplicative", 2.0, p, 1, q) and not rescues("multiplicative", 1.9, p, 1, q)
    # Point masses: q(x) = 1.
    assert rescues("additive", 0.75, p, 1) and not rescues("additive", 0.7, p, 1)
    assert rescues("multiplicative", 4.0, p, 1) and not rescues("multiplicative", 3.9, p, 1)


@sampling
@pytest.mark.parametrize("gate", GATES)
def test_no_gate_keeps_a_token_without_probability(gate, sampled):
    q = [0.1, 0.2, 0.3, 0.4] if sampled else None
    assert not rescues(gate, LOOSEST[gate], [0.5, 0.3, 0.2, 0.0], 3, q)
    assert rescues(gate, LOOSEST[gate], [0.5, 0.28, 0.2, 0.02], 3, q)


@sampling
def test_parameter_zero_is_standard_speculative_decoding(sampled):
    case = random_case(1, TREE, 40, sampled=sampled, batch=30)
    for off in (0.0, -1.0, float("nan")):
        case["threshold"] = torch.full((30,), off)
        results = [verify_tree(**case, gate=gate, backend="torch") for gate in GATES]
        for result in results:
            assert (result.rescued == 0).all() and (result.tv_bound == 0).all()
            assert all(x.equal(y) for x, y in zip(result, results[0]))


def rival_case(seed, gate, *args, **options):
    case = random_case(seed, *args, **options)
    values = [0.0, *PARAMETERS[gate]]
    case["threshold"] = torch.tensor([float(values[(seed + b + b // 4) % len(values)]) for b in range(len(case["threshold"]))])
    case["coins"][1:] = 0.5 + case["coins"][1:] / 2  # most rows hard for the SD test
    return case | {"gate": gate}


@sampling
@pytest.mark.parametrize("gate", RIVALS)
def test_kernel_equals_reference(interpreter, gate, sampled):
    outcomes = torch.zeros(3, dtype=torch.int64)
    for seed in range(4):
        options = dict(epsilon=seed & 1 > 0, protected=seed & 2 > 0, ordered=seed & 1 > 0, strided=seed == 3)
        parents, vocab, batch = (CHAIN, 8193, 3) if seed == 0 else ((CHAIN, TREE)[seed & 1], 40, 9)
        case = rival_case(seed, gate, parents, vocab, sampled=sampled, batch=batch, **options)
        result = assert_same(interpreter(kernel_interpreter.verify, case), case)
        drafts, rescued = result.num_correct_drafts, result.rescued
        outcomes += torch.stack([(drafts - rescued).sum(), rescued.sum(), (drafts == 0).sum()])
    assert (outcomes > 0).all(), "SD acceptance, rescue and rejection must all occur"


@pytest.mark.parametrize("gate", RIVALS)
def test_unusable_entries_of_the_row_count_as_nothing(interpreter, gate):
    case = rival_case(2, gate, CHAIN, 40, sampled=True, batch=8)
    probs = case["target_probs"].clone()
    for column, value in ((7, float("nan")), (11, float("inf")), (13, -1.0)):
        probs[:, :, column] = value
    broken, zeroed = case | {"target_probs": probs}, case | {"target_probs": torch.where(probs.abs() < 2, probs, 0)}
    zeroed["target_probs"] = zeroed["target_probs"].clamp(min=0)
    got = interpreter(kernel_interpreter.verify, broken)
    for result in (verify_tree(**broken, backend="torch"), verify_tree(**zeroed, backend="torch")):
        assert got.num_correct_drafts.equal(result.num_correct_drafts) and got.rescued.equal(result.rescued)
    assert (got.rescued > 0).any()


@pytest.mark.parametrize("gate", RIVALS)
def test_no_gate_waits_for_the_device(interpreter, gate):
    case = rival_case(0, gate, TREE, 20, sampled=True, epsilon=True, protected=True)
    assert sorted(set(interpreter(kernel_interpreter.operators_called, case))) == ["aten.empty.memory_format", "launch"]


FILE = "triton_gates.py"
MUTANTS = {
    "margin of the token itself": ("greedy-margin", "_peak(row_ptr, VOCAB, BLOCK) - margin", "mass - margin"),
    "> in the margin": ("greedy-margin", "(mass >= _peak", "(mass > _peak"),
    "> in the ratio": ("greedy-ratio", "(factor * mass >= _peak", "(factor * mass > _peak"),
    "ratio the wrong way": ("greedy-ratio", "(factor * mass >= _peak", "(mass >= factor * _peak"),
    "> in the addend": ("additive", "mass >= q - addend", "mass > q - addend"),
    "addend of the point mass": ("additive", "(mass >= q - addend)", "(mass >= 1.0 - addend)"),
    "> in the factor": ("multiplicative", "(factor * mass >= q)", "(factor * mass > q)"),
    "draft without record": ("multiplicative", "return ((q > 0.0) & (factor", "return ((q >= 0.0) & (factor"),
    "upper set of a rule on q": ("multiplicative", 'and (GATE != "multiplicative")', 'and (GATE != "none")'),
    "<= in the rank": ("top-m", "axis=0) < size)", "axis=0) <= size)"),
    "entropy of the first block": ("typical", "entropy -= p", "entropy = -p"),
    "max instead of min": ("typical", "tl.minimum(delta * delta", "tl.maximum(delta * delta"),
    "one gate for another": ("greedy-margin", "kept = within_margin(", "kept = within_ratio("),
}


def grid_case(gate, seed, vocab):
    """Rows in sixteenths and parameters that hit their edges exactly; children without a recorded probability."""
    case = random_case(seed, [0, 0], vocab, sampled=True, batch=45, width=4, noise=4.0)
    case["coins"] = 0.5 + case["coins"] / 2
    g = torch.Generator().manual_seed(seed)

    def rows(like):
        cuts = torch.randint(17, (*like.shape[:-1], like.shape[-1] - 1), generator=g).sort(-1).values
        ends = torch.zeros_like(cuts[..., :1])
        return torch.diff(torch.cat([ends, cuts, ends + 16], -1)) / 16

    case["target_probs"] = rows(case["target_probs"])
    case["proposals"] = case["proposals"]._replace(probs=rows(case["proposals"].probs))
    case["candidates"][::3] = torch.randint(vocab, case["candidates"][::3].shape, generator=g)
    values = {"greedy-margin": [1, 2, 4], "greedy-ratio": [16, 32, 48], "additive": [1, 2, 4], "multiplicative": [16, 32, 48]}
    values |= {"top-m": [16, 32, 48], "typical": [14, 11, 8]}
    case["threshold"] = torch.tensor([values[gate][b % 3] / 16 for b in range(45)])
    return case | {"gate": gate}


def flat_case():
    """A token of 0.05, typical in a row that is flat over two blocks of 8192 and not in one that is not."""
    case = random_case(0, [0], 8200, sampled=False, batch=1)
    case["target_probs"] = torch.full((1, 2, 8200), 0.95 / 8199)
    case["target_probs"][0, 0, 3] = 0.05
    case["candidates"][:] = 3
    return case | {"coins": torch.full((1, 2), 0.9), "threshold": torch.tensor([0.3]), "gate": "typical"}


def survives(gate, run):
    for case in (*([flat_case()] if gate == "typical" else []), grid_case(gate, 0, 5)):
        expected, got = verify_tree(**case, backend="torch"), run(case)
        if not all(getattr(got, name).equal(getattr(expected, name)) for name in ("num_correct_drafts", "rescued")):
            return False
    return True


@pytest.mark.parametrize("gate", RIVALS)
def test_the_kernel_survives(interpreter, gate):
    assert survives(gate, lambda case: interpreter(kernel_interpreter.verify, case))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(interpreter, tmp_path, name):
    gate, old, new = MUTANTS[name]
    scratch = str(tmp_path / f"gate_mutant_{list(MUTANTS).index(name)}")
    assert not survives(gate, lambda case: interpreter(kernel_interpreter.verify, case, ((FILE, old, new),), scratch))
