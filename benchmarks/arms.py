"""The arms: what is served, and with which arguments. Arms of one suite differ in their speculative flags alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.console import largest_tree

# --speculative-algorithm of stock SGLang for a family of drafts.
STOCK = {"eagle": "EAGLE", "eagle3": "EAGLE3", "nextn": "NEXTN", "standalone": "STANDALONE"}
# SGLang's chain sampler takes no other draft.
REJECTION_FAMILIES = ("eagle", "eagle3", "nextn")


@dataclass(frozen=True)
class Arm:
    """One way of serving the model.

    kind: ``plain``, ``stock`` (rejection sampling included) or ``nsd``. algorithm: of SGLang, None for plain.
    threshold, proposals, gate: of NSD, else None. num_steps, topk, num_draft_tokens: the draft tree, None for plain.
    server_arguments: of launch_server beyond what every arm of the run has; they contain all of the above.
    """

    name: str
    kind: str
    algorithm: str | None = None
    threshold: float | None = None
    proposals: str | None = None
    gate: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    server_arguments: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"server_arguments": list(self.server_arguments)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Arm:
        return cls(**(content | {"server_arguments": tuple(content["server_arguments"])}))

    def extended(self, name: str, *arguments: str, **changes: Any) -> Arm:
        """This arm under another name with more arguments of launch_server; ``changes`` are fields."""
        return replace(self, name=name, server_arguments=(*self.server_arguments, *arguments), **changes)


def plain() -> Arm:
    """Decoding without speculation."""
    return Arm("plain", "plain")


def stock(settings: Settings, shape: tuple[int, int, int] | None = None, name: str | None = None) -> Arm:
    """Stock speculation that drafts by top-k. ``shape``: steps, topk, nodes; by default the run's tree."""
    algorithm = STOCK[settings.family]
    return _speculating(settings, name or f"stock {algorithm}", "stock", algorithm, shape)


def rejection(settings: Settings) -> Arm | None:
    """Stock rejection sampling, which SGLang has for chains alone: a chain as deep as the run's tree.

    None for a draft that SGLang refuses it for (standalone).
    """
    if settings.family not in REJECTION_FAMILIES:
        return None
    shape = (settings.num_steps, 1, settings.num_steps + 1)
    name = f"stock {STOCK[settings.family]} rejection" + ("" if settings.eagle_topk == 1 else ", chain")
    arm = _speculating(settings, name, "stock", STOCK[settings.family], shape)
    return arm.extended(name, "--speculative-use-rejection-sampling")


def nsd(
    settings: Settings,
    threshold: float,
    proposals: str = "topk",
    shape: tuple[int, int, int] | None = None,
    name: str | None = None,
) -> Arm:
    """NSD at ``threshold`` with ``proposals`` (``topk`` or ``sampled``)."""
    name = name or f"NSD {threshold:g} {'top-k' if proposals == 'topk' else proposals}"
    arm = _speculating(settings, name, "nsd", "NSD", shape)
    words = ["--nsd-threshold", f"{threshold:g}", "--nsd-proposals", proposals, "--nsd-drafter", settings.family]
    if proposals == "sampled":
        words += ["--nsd-candidates", str(settings.candidates)]
    return arm.extended(name, *words, threshold=threshold, proposals=proposals)


def _speculating(settings: Settings, name: str, kind: str, algorithm: str, shape: tuple[int, int, int] | None) -> Arm:
    steps, topk, nodes = shape or (settings.num_steps, settings.eagle_topk, settings.num_draft_tokens)
    words = ["--speculative-algorithm", algorithm]
    if settings.draft is not None:
        words += ["--speculative-draft-model-path", settings.draft]
    words += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
    words += ["--speculative-num-draft-tokens", str(nodes)]
    return Arm(
        name, kind, algorithm, num_steps=steps, topk=topk, num_draft_tokens=nodes, server_arguments=tuple(words)
    )


def comparison(settings: Settings) -> list[Arm]:
    """Arms of the comparison, in the order of the first repeat."""
    made: list[Arm | None] = []
    if "plain" in settings.kinds:
        made.append(plain())
    if "stock" in settings.kinds:
        made.append(stock(settings))
    if "rejection" in settings.kinds:
        made.append(rejection(settings))
    if "nsd" in settings.kinds:
        for proposals, thresholds in (("topk", settings.thresholds), ("sampled", settings.sampled_thresholds)):
            if proposals in settings.proposals:
                made += [nsd(settings, threshold, proposals) for threshold in thresholds]
    return [arm for arm in made if arm is not None]


def ablation(settings: Settings) -> list[Arm]:
    """Threshold against draft length, then tree shapes at the largest threshold; with plain decoding to compare to.

    Draft lengths are half, once and one and a half times the run's, with nodes in proportion.
    """
    steps, topk, nodes = settings.num_steps, settings.eagle_topk, settings.num_draft_tokens
    lengths = sorted({max(1, round(steps * factor)) for factor in (0.5, 1.0, 1.5)})
    thresholds = sorted({min(settings.thresholds), max(settings.thresholds)})
    shapes = [_shape(length, topk, 1 + round((nodes - 1) * length / steps)) for length in lengths]
    made = [plain()]
    made += [_ablated(settings, threshold, shape) for shape in shapes for threshold in thresholds]
    wider = topk + 1
    for shape in (_shape(steps, 1, steps + 1), _shape(steps, wider, round(nodes * wider / topk))):
        if shape not in shapes:
            made.append(_ablated(settings, thresholds[-1], shape))
    return made


def _shape(steps: int, topk: int, nodes: int) -> tuple[int, int, int]:
    if topk == 1:
        return steps, 1, steps + 1
    return steps, topk, min(max(nodes, 2), largest_tree(steps, topk))


def _ablated(settings: Settings, threshold: float, shape: tuple[int, int, int]) -> Arm:
    return nsd(settings, threshold, "topk", shape, "NSD {:g}, {}/{}/{}".format(threshold, *shape))
