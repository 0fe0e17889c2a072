"""KL certificates against numerical minimisation, token by token."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nsd_sglang.benchmarks.kl_certificates import DIRECTIONS, certificate, certificates, divergence, minimal_kl
from nsd_sglang.kernels.gates import GATES

PARAMETERS = {
    "nucleus": (0.4, 0.8),
    "greedy-margin": (1e-9, 0.3),
    "greedy-ratio": (1.0, 4.0),
    "additive": (0.05, 0.3),
    "multiplicative": (1.5, 4.0),
    "top-m": (1, 3),
    "typical": (0.9, 0.4),
}


def rejects(gate, parameter, p, b):
    """Smallest q(b) at which token b is rejected, None if it never is. From the rules' words, a token at a time."""
    above, peak = p[p > p[b]], p.max()
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    kept = {
        "nucleus": lambda: above.sum() < parameter,
        "greedy-margin": lambda: p[b] >= peak - parameter,
        "greedy-ratio": lambda: parameter * p[b] >= peak,
        "top-m": lambda: len(above) < parameter,
        "typical": lambda: p[b] > min(parameter**2, parameter * math.exp(-entropy)),
    }
    if gate in kept:
        return None if kept[gate]() and p[b] > 0 else 0.0
    edge = p[b] + parameter if gate == "additive" else parameter * p[b]
    return edge if edge < 1 else None


def brute_force(gate, parameter, p, direction):
    """The minimum over every rejected token b and every q whose argmax is b, by SLSQP over log q."""
    best = math.inf
    for b in range(len(p)):
        edge = rejects(gate, parameter, p, b)
        if edge is None or (direction == "q||p" and p[b] == 0):
            continue

        def kl(q):
            x, y = (p, q) if direction == "p||q" else (q, p)
            return (x[x > 0] * np.log(x[x > 0] / np.maximum(y[x > 0], 1e-300))).sum()

        limits = [{"type": "eq", "fun": lambda q: q.sum() - 1}, {"type": "ineq", "fun": lambda q: q[b] - np.delete(q, b)}]
        limits.append({"type": "ineq", "fun": lambda q: q[b] - edge})
        start = np.full(len(p), max(1 - max(edge, 1 / len(p)), 1e-3) / (len(p) - 1))
        start[b] = 1 - start[0] * (len(p) - 1)
        found = minimize(kl, start, bounds=[(1e-12, 1)] * len(p), constraints=limits, method="SLSQP", options={"maxiter": 500, "ftol": 1e-13})
        if found.success and found.x[b] >= edge - 1e-7:
            best = min(best, max(found.fun, 0.0))
    return best


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("gate", GATES)
def test_certificate_is_the_minimum(gate, direction):
    finite = 0
    for seed in range(5):
        p = np.random.default_rng(seed).dirichlet(np.full(4 + seed % 2, (0.5, 2.0)[seed % 2]))
        p = np.maximum(p, 1e-4) / np.maximum(p, 1e-4).sum()
        for parameter in PARAMETERS[gate]:
            want = brute_force(gate, parameter, p, direction)
            got = certificate(gate, parameter, torch.tensor(p), direction).item()
            assert got == pytest.approx(want, abs=2e-5), (p, parameter)
            finite += 1e-3 < want < math.inf
            assert got >= minimal_kl(gate, parameter, direction) - 1e-9
    assert finite >= 4, "certificates of 0 and infinity say nothing"


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("gate, parameter", [("greedy-margin", 0.3), ("greedy-margin", 0.7), ("additive", 0.2), ("additive", 0.6)])
def test_smallest_certificate_of_any_row(gate, parameter, direction):
    """Reached by rows of the docstring's kind, and by no random row below it."""
    smallest = minimal_kl(gate, parameter, direction)
    first = torch.linspace(0.001, 0.999, 4001, dtype=torch.float64)
    first = torch.cat([first, torch.tensor([(1 + parameter) / 2 + 1e-7])])
    if gate == "additive":  # the rest over many tokens, so that none is above the drafted one
        at = torch.cat([first[::10, None], ((1 - first[::10, None]) / 60).expand(-1, 60)], 1)
    else:
        at = torch.stack([first, 1 - first], 1)
    reached = certificate(gate, parameter, at, direction)
    assert reached.min().item() == pytest.approx(smallest, abs=1e-5) and smallest > 0.01
    assert (reached >= smallest - 1e-9).all() and smallest >= (2 * parameter**2 if gate == "additive" else 0)
    g = torch.Generator().manual_seed(0)
    for vocab in (2, 3, 5, 9):
        x = torch._standard_gamma(torch.full((300, vocab), 0.6, dtype=torch.float64), generator=g).clamp(min=1e-9)
        rows = x / x.sum(-1, keepdim=True)
        assert (certificate(gate, parameter, rows, direction) >= smallest - 1e-9).all()


@pytest.mark.parametrize("gate", ["nucleus", "greedy-ratio", "multiplicative", "top-m", "typical"])
def test_the_others_have_no_bound_for_every_row(gate):
    """A nearly flat row over many tokens, with one token that the rule rejects."""
    parameter = {"nucleus": 0.5, "top-m": 10, "typical": 0.5}.get(gate, 3.0)
    row = torch.cat([torch.ones(4000), torch.full((4000,), 1e-3)]).double()
    row[3000:4000] *= 1 - 1e-6 if gate in ("nucleus", "top-m") else 0.1
    assert certificate(gate, parameter, row / row.sum()).item() < 2e-3
    assert minimal_kl(gate, parameter) == 0.0


def test_known_values():
    sure = torch.tensor([1.0, 0.0, 0.0]).double()
    assert certificate("greedy-margin", 1e-9, sure).item() == pytest.approx(math.log(2))  # the ceiling of one candidate
    assert certificate("greedy-margin", 1e-9, sure, "q||p").item() == math.inf
    p = torch.tensor([0.6, 0.3, 0.1]).double()
    strict = certificate("top-m", 1, p).item()
    assert strict == pytest.approx(0.6 * math.log(0.6 / 0.45) + 0.3 * math.log(0.3 / 0.45))
    assert strict == certificate("greedy-margin", 1e-9, p).item() == certificate("greedy-ratio", 1.0, p).item()
    assert certificate("top-m", 3, p).item() == math.inf and minimal_kl("nucleus", 1.0) == math.inf
    assert certificate("top-m", 1, p, "q||p").item() == pytest.approx(-math.log(1 - (0.6**0.5 - 0.3**0.5) ** 2))
    rows = torch.stack([p, p.flip(0)])
    for gate in GATES:
        both = certificate(gate, GATES[gate].default, rows)
        assert both.shape == (2,) and both[0] == both[1] == certificate(gate, GATES[gate].default, p), gate


def test_the_diagnostic_of_a_position():
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    found = certificates(p, q)
    assert found["kl"] == pytest.approx(divergence(p, q)) and set(found["gates"]) == set(GATES)
    assert certificates(p, q, {"top-m": 1})["gates"]["top-m"]["certified"] is True
    far = torch.tensor([0.1, 0.8, 0.1])
    assert certificates(p, far, {"top-m": 1})["gates"]["top-m"]["certified"] is False
    assert certificates(p)["kl"] is None and certificates(p)["gates"]["nucleus"]["certified"] is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("naive", 1.0), "gate: expected one of nucleus, greedy-margin"),
        (("multiplicative", 0.5), "parameter of multiplicative: expected 0 or a number from 1 to"),
        (("top-m", 1.5), "parameter of top-m: expected a whole number from 0 to 1024, got 1.5"),
        (("top-m", 1, "p-q"), r"direction: expected one of p\|\|q, q\|\|p"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        minimal_kl(*arguments)
