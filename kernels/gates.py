"""The acceptance rules that `verify_tree` can ask once the SD test has failed for every child of a node.

`nucleus` is the product. The others are rival rules from the literature, for side by side only: they run through the same
verifier, are asked at the same moment (deferred, first child in draw order that passes), obey the same budget and protected
tokens, and `tv_bound` holds for them too, because it bounds what any rule can do after the SD test. A rule never sees a
token with p(x) = 0: those are refused before it is asked.

Where a rule compares with the draft, q(x) is the recorded probability of the child under the law that its siblings were
drawn from, or 1 for point-mass (top-k) proposals; a child without a recorded probability is refused.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """One rule.

    symbol: name of its parameter. rule: the condition under which x is kept. default: parameter of the side by side, with
    its reason in `note`. low, high: range of the parameter when the rule is on; 0 always switches it off (exact SD).
    whole: the parameter is a whole number. upper: the tokens kept are those above some p, so that one refused child settles
    all children below it. source: where the rule comes from.
    """

    symbol: str
    rule: str
    default: float
    low: float
    high: float
    whole: bool
    upper: bool
    note: str
    source: str

    def accepts(self, parameter: float) -> bool:
        """Whether the parameter is 0 (off) or in range. False for NaN."""
        if not (parameter == 0.0 or self.low <= parameter <= self.high):
            return False
        return not self.whole or parameter == int(parameter)

    @property
    def range(self) -> str:
        """What the parameter accepts, for error messages and help."""
        kind = "a whole number" if self.whole else "a number"
        if self.low == 0.0:
            return f"{kind} from 0 to {self.high:g}"
        return f"0 or {kind} from {self.low:g} to {self.high:g}"


_LARGEST_FACTOR = 1e6
_LARGEST_RANK = 1024

GATES: dict[str, Gate] = {
    "nucleus": Gate(
        symbol="theta",
        rule="the mass of the tokens more probable than x is below theta",
        default=0.95,
        low=0.0,
        high=1.0,
        whole=False,
        upper=True,
        note="the paper's default",
        source="arXiv 2610.07822, Eq. 1",
    ),
    "greedy-margin": Gate(
        symbol="m",
        rule="p(x) >= p_max - m; strict greedy, the argmax alone, as m goes to 0",
        default=0.3,
        low=0.0,
        high=1.0,
        whole=False,
        upper=True,
        note="t = 0.3, the additive slack evaluated in the source",
        source="arXiv 2606.30265, additive relaxation of strict greedy acceptance",
    ),
    "greedy-ratio": Gate(
        symbol="c",
        rule="c * p(x) >= p_max: the margin in logarithms, log p(x) >= log p_max - log c",
        default=10.0,
        low=1.0,
        high=_LARGEST_FACTOR,
        whole=False,
        upper=True,
        note="alpha = 1 / c = 0.1, the multiplicative slack evaluated in the source",
        source="arXiv 2606.30265, multiplicative relaxation of strict greedy acceptance",
    ),
    "additive": Gate(
        symbol="a",
        rule="p(x) >= q(x) - a",
        default=0.3,
        low=0.0,
        high=1.0,
        whole=False,
        upper=False,
        note="the slack of greedy-margin, for want of a published one",
        source="the SD test p(x) >= u q(x) at its hardest, u = 1, with an additive slack",
    ),
    "multiplicative": Gate(
        symbol="c",
        rule="c * p(x) >= q(x)",
        default=2.0,
        low=1.0,
        high=_LARGEST_FACTOR,
        whole=False,
        upper=False,
        note="lenience 1 / c = 0.5, the mildest that the source measures",
        source="lenience, arXiv 2211.17192 appendix A.5: q is multiplied by 1 / c before it is compared with p",
    ),
    "top-m": Gate(
        symbol="m",
        rule="fewer than m tokens are more probable than x",
        default=10.0,
        low=0.0,
        high=_LARGEST_RANK,
        whole=True,
        upper=True,
        note="the rank up to which arXiv 2610.07822 reports where rejected tokens lie",
        source="arXiv 2606.30265, top-m relaxed acceptance",
    ),
    "typical": Gate(
        symbol="delta",
        rule="p(x) > min(delta ** 2, delta * exp(-H(p))), H the entropy of p in nats; a larger delta keeps less",
        default=0.3,
        low=0.0,
        high=1.0,
        whole=False,
        upper=True,
        note="epsilon = delta ** 2 = 0.09, as Medusa's implementations set it",
        source="arXiv 2401.10774, typical acceptance",
    ),
}

DRAFT_GATES = tuple(name for name, gate in GATES.items() if not gate.upper)
