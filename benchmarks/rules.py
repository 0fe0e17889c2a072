"""The suite rules: rival relaxed acceptance rules beside the nucleus, through the same verifier, on the same drafts.

All arms have the run's tree and the same proposals; only ``--nsd-gate`` and its parameter differ. No two rules have a common
scale, so each takes the value that its source uses or evaluates (``Gate.note``), unless ``parameters`` says otherwise; speed is
to be read against the deviation that the answers report (``tv_bound``, a bound for every rule) and the likelihood of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nsd_sglang.benchmarks import arms as arm_kinds
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.kernels.gates import GATES

# Two rules compare p(x) with q(x), which says nothing about the draft when its tokens are its top-k (q(x) = 1).
PROPOSALS = "sampled"


def rule_arms(settings: Settings, parameters: Mapping[str, float] | None = None, proposals: str = PROPOSALS) -> list[Arm]:
    """Plain decoding and standard verification (threshold 0) to compare to, then one arm a rule, the nucleus first.

    parameters: {gate: parameter}, default the gates' own. proposals: of every arm, ``sampled`` or ``topk``.
    Raises BenchError for an unknown gate or a parameter that it does not accept.
    """
    chosen = {name: gate.default for name, gate in GATES.items()} if parameters is None else dict(parameters)
    made = [arm_kinds.plain(), arm_kinds.nsd(settings, 0.0, proposals, name=f"exact {_short(proposals)}")]
    for gate, parameter in chosen.items():
        if gate not in GATES:
            raise BenchError(f"rules: a gate is one of {', '.join(GATES)}, got {gate!r}")
        if not GATES[gate].accepts(parameter):
            raise BenchError(f"rules: {gate} accepts {GATES[gate].range}, got {parameter!r}")
        made.append(_arm(settings, gate, parameter, proposals))
    return made


def arms(settings: Settings) -> list[Arm]:
    """The arms of ``nsd-sglang bench``."""
    return rule_arms(settings)


def _arm(settings: Settings, gate: str, parameter: float, proposals: str) -> Arm:
    name = f"{gate} {GATES[gate].symbol}={parameter:g} {_short(proposals)}"
    if gate == "nucleus":
        return arm_kinds.nsd(settings, parameter, proposals, name=name).extended(name, "--nsd-gate", gate, gate=gate)
    # The same arm with the rule in the place of the threshold.
    arm = arm_kinds.nsd(settings, 0.0, proposals, name=name)
    words = list(arm.server_arguments)
    place = words.index("--nsd-threshold")
    words[place : place + 2] = ["--nsd-gate", gate, "--nsd-gate-parameter", f"{parameter:g}"]
    return replace(arm, gate=gate, threshold=parameter, server_arguments=tuple(words))


def _short(proposals: str) -> str:
    return "top-k" if proposals == "topk" else proposals
