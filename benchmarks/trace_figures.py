"""Figures from recorded verify steps (`--nsd-trace`), after section 4.4 of arXiv 2610.07822.

What is counted:

- *SD-rejected token*: a drafted token that the standard test tried and turned down. A chain tries one token a position, as
  the paper does. In a tree the children of a node are tried in draw order until one is accepted, so a node gives as many
  rejected tokens as were tried before that (all of them when none is accepted); later ones were never tried.
  A child that the recorded law gives no probability (padding) is not counted, nor is a position without a recorded law.
- *positions*: visited nodes with at least one child that counts. After a rescue the walk goes on, so deeper positions are
  those that NSD reaches, not those that standard verification would have reached.
- *target nucleus*: tokens x with p(x) > 0 and less than NUCLEUS of the target's mass strictly above them, whatever the
  threshold of the run was: the share stands beside the paper's, which is at 0.95.
- *nucleus core*: the nucleus at CORE. One half is the smallest set of most likely tokens that is more likely than all the
  rest together: a rescue inside it kept what the target itself would sooner have said than not.
- `kl_certificates`: see `certified`.
- by depth: index 0 is the first drafted token. `acceptance_by_depth` is the share of positions where a child was kept,
  `sd_acceptance_by_depth` where the standard test alone kept one, `e_s_by_depth`, `r_by_depth` and `kl_by_depth` are means of
  E_S, R and KL(q || p) in nats over the positions where they are recorded and finite.

Figures without a single case are None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks.certified import Law, certified
from nsd_sglang.benchmarks.errors import BenchError

SCHEMA = 1
NUCLEUS = 0.95
CORE = 0.5
RANKS = 20  # ranks with a count of their own; the rest share one
OUTCOMES = ("accepted", "rescued", "rejected")


def aggregate(trace_files: Mapping[str, Iterable[Path]], nucleus: float = NUCLEUS, core: float = CORE) -> dict[str, Any]:
    """The content of diagnostics.json: ``{"arms": {NAME: figures}}``.

    trace_files: the traces of each arm, one file a data-parallel replica. Raises BenchError for a file that is no trace.
    """
    figures = {}
    for name, paths in trace_files.items():
        counts = _Counts(nucleus, core)
        for path in paths:
            for line in read_trace(path):
                counts.add(line["nodes"])
        figures[name] = counts.figures()
    return {"arms": figures}


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace after its header. A last line that was cut short by a kill is left out."""
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file):
            try:
                line = json.loads(text)
            except ValueError:
                if not text.endswith("\n"):
                    return
                raise BenchError(f"{path}, line {number + 1}: this is no JSON; --nsd-trace writes whole lines") from None
            if number == 0:
                if not isinstance(line, dict) or line.get("kind") != "nsd-trace" or line.get("schema") != SCHEMA:
                    raise BenchError(f"{path}: accepted is what --nsd-trace of this version writes, schema {SCHEMA}")
                continue
            yield line


class _Mean:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class _Counts:
    """Sums over the nodes of one arm."""

    def __init__(self, nucleus: float, core: float) -> None:
        self.nucleus, self.core = nucleus, core
        self.steps = self.nodes = 0
        self.ranks = [0] * (RANKS + 1)
        self.ranks_in_nucleus = [0] * (RANKS + 1)
        self.rescue_in_core, self.e_s = _Mean(), _Mean()
        self.entropies = {kind: {outcome: _Mean() for outcome in OUTCOMES} for kind in ("target_entropy", "draft_entropy")}
        self.by_depth: list[dict[str, _Mean]] = []
        self.laws: list[Law] = []

    def add(self, nodes: list[dict[str, Any]]) -> None:
        self.steps += 1
        for node in nodes:
            counted = _counted(node)
            if counted:
                self._add_node(node, counted)

    def _add_node(self, node: dict[str, Any], counted: list[int]) -> None:
        self.nodes += 1
        for child in counted if node["sd"] is None else counted[: counted.index(node["sd"])]:
            place = min(node["rank"][child] - 1, RANKS)
            self.ranks[place] += 1
            if self._inside(node, child, self.nucleus):
                self.ranks_in_nucleus[place] += 1
        if node["outcome"] == "rescued":
            self.rescue_in_core.add(float(self._inside(node, node["kept"], self.core)))
        self.e_s.add(node["e_s"])
        for kind, means in self.entropies.items():
            means[node["outcome"]].add(node[kind])
        while len(self.by_depth) <= node["depth"]:
            self.by_depth.append({name: _Mean() for name in ("e_s", "r", "kept", "sd", "kl")})
        here = self.by_depth[node["depth"]]
        for name in ("e_s", "r", "kl"):
            here[name].add(node[name])
        here["kept"].add(float(node["kept"] is not None))
        here["sd"].add(float(node["sd"] is not None))
        if node["draft_entropy"] is not None:
            self.laws.append(Law(node["kl"], node["top"], node["target_entropy"]))

    def _inside(self, node: dict[str, Any], child: int, theta: float) -> bool:
        return node["p"][child] > 0 and (theta >= 1 or node["above"][child] < theta)

    def figures(self) -> dict[str, Any]:
        rejected, inside = sum(self.ranks), sum(self.ranks_in_nucleus)
        return {
            "steps": self.steps,
            "nodes": self.nodes,
            "nucleus": self.nucleus,
            "core": self.core,
            "rejected": rejected,
            "rejected_in_nucleus": _share(inside, rejected),
            "rank_histogram": self.ranks,
            "rejected_in_top_ten": _share(sum(self.ranks[:10]), rejected),
            # The same for those inside the nucleus alone.
            "rank_histogram_in_nucleus": self.ranks_in_nucleus,
            "in_nucleus_in_top_ten": _share(sum(self.ranks_in_nucleus[:10]), inside),
            "rescues": self.rescue_in_core.count,
            # E_S is the probability of a rescue (for one child), so this says whether the recording is consistent.
            "expected_rescues": self.e_s.total,
            "rescues_in_core": self.rescue_in_core.value,
            **{kind: {outcome: mean.value for outcome, mean in means.items()} for kind, means in self.entropies.items()},
            "e_s_by_depth": self._by_depth("e_s"),
            "r_by_depth": self._by_depth("r"),
            "acceptance_by_depth": self._by_depth("kept"),
            "sd_acceptance_by_depth": self._by_depth("sd"),
            "kl_by_depth": self._by_depth("kl"),
            "kl_infinite": _share(sum(law.kl is None for law in self.laws), len(self.laws)),
            "kl_certificates": certified(self.laws),
        }

    def _by_depth(self, name: str) -> list[float | None]:
        return [means[name].value for means in self.by_depth]


def _counted(node: dict[str, Any]) -> list[int]:
    """Indices of the children that the standard test can try, in draw order."""
    if node["q"] is not None:
        return [child for child, q in enumerate(node["q"]) if q > 0]
    tokens = node["children"]
    return [child for child, token in enumerate(tokens) if token not in tokens[:child]]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
