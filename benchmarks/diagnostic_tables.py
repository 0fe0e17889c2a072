"""Tables of recorded verify steps, and of the paper's figures beside ours."""

from __future__ import annotations

from nsd_sglang.benchmarks import paper
from nsd_sglang.benchmarks.tables import NOTHING, Cell, Table, at, show

_FIGURES = {
    "steps": ("verify steps recorded", ""),
    "nodes": ("nodes verified", ""),
    "rejected": ("tokens that the standard test rejected", ""),
    "rejected_in_nucleus": ("of them inside the target nucleus", "share"),
    "rejected_in_top_ten": ("of them among the ten most likely", "share"),
    "rescues_in_core": ("rescues in the nucleus core", "share of rescues"),
}
_BY_OUTCOME = {"target_entropy": "target entropy", "draft_entropy": "draft entropy"}
_BY_DEPTH = {
    "acceptance_by_depth": "acceptance",
    "sd_acceptance_by_depth": "acceptance by the standard test",
    "e_s_by_depth": "E_S",
    "r_by_depth": "R",
    "kl_by_depth": "KL, draft and target",
}


def diagnostics_table(summary: dict) -> Table | None:
    """One column an arm; for each rule in `kl_certificates` the certificate and how many positions it holds for."""
    arms = summary["diagnostics"]
    if not arms:
        return None
    table = Table("", list(arms))

    def row(title: str, unit: str, *steps: object) -> None:
        cells = [at(summary, "diagnostics", name, *steps) for name in arms]
        if any(cell.pointer for cell in cells):
            table.rows.append((title, unit, cells))

    for key, (title, unit) in _FIGURES.items():
        row(title, unit, key)
    for key, title in _BY_OUTCOME.items():
        for outcome in ("accepted", "rescued", "rejected"):
            row(f"{title}, {outcome}", "nats", key, outcome)
    certificates = [arm["kl_certificates"] for arm in arms.values() if isinstance(arm.get("kl_certificates"), dict)]
    for rule in dict.fromkeys(rule for rules in certificates for rule in rules):
        cells = [_certificate(summary, name, rule) for name in arms]
        if any(cell.text != NOTHING for cell in cells):
            table.rows.append((f"KL certificate, {rule}", "nats", cells))
            row(f"positions below it, {rule}", "share", "kl_certificates", rule, "share_below")
    return table


def _certificate(summary: dict, name: str, rule: str) -> Cell:
    """A rule that never rejects has an infinite certificate, which the file writes as null."""
    rules = summary["diagnostics"][name].get("kl_certificates")
    figures = rules.get(rule) if isinstance(rules, dict) else None
    if isinstance(figures, dict) and figures.get("certificate_nats", "") is None:
        return Cell("infinite")
    return at(summary, "diagnostics", name, "kl_certificates", rule, "certificate_nats")


def depth_table(summary: dict) -> Table | None:
    """One row a quantity and arm, one column a depth of the draft tree."""
    arms = summary["diagnostics"]
    listed = [(key, name, arm[key]) for key in _BY_DEPTH for name, arm in arms.items() if isinstance(arm.get(key), list)]
    deepest = max((len(values) for _, _, values in listed), default=0)
    if not deepest:
        return None
    table = Table("By depth in the draft tree", [f"depth {depth + 1}" for depth in range(deepest)], corner="quantity")
    for key, name, _ in listed:
        title = f"{_BY_DEPTH[key]} (nats)" if key.startswith("kl") else _BY_DEPTH[key]
        table.rows.append((title, name, [at(summary, "diagnostics", name, key, depth) for depth in range(deepest)]))
    return table


def paper_table(summary: dict) -> Table:
    """The paper's figures, and for each what this run has."""
    table = Table("", ["the paper", "where", "this run"], corner="figure")

    def row(entry: tuple[str, float, str], ours: list[tuple[str, Cell]], times: str = "×") -> None:
        title, value, where = entry
        for position, (setting, cell) in enumerate(ours or [("", Cell("not measured"))]):
            theirs = [Cell(show(value) + times), Cell(f"{paper.PAPER}, {where}")] if position == 0 else [Cell(""), Cell("")]
            table.rows.append((title if position == 0 else "", setting, [*theirs, cell]))

    lead, groups = summary["headline"], summary["groups"]
    over_stock = []
    for place, group in enumerate(groups):
        if lead and (group["suite"], group["arm"]) == ("comparison", lead["nsd"]):
            cell = at(summary, "groups", place, "ratios", "stock", "figures", "output_throughput", ratio=True)
            over_stock += [(f"{group['arm']}, concurrency {group['concurrency']}", cell)] if cell.pointer else []
    row(paper.MEAN_OVER_SD, over_stock)
    for entry, kind in ((paper.MOST_OVER_SD, "stock"), (paper.MOST_OVER_PLAIN, "plain")):
        most = summary["highest"][f"nsd_over_{kind}"]
        cell = at(summary, "highest", f"nsd_over_{kind}", ratio=True)
        row(entry, [(f"{most['arm']}, concurrency {most['concurrency']}", cell)] if most else [])
    for entry, key in ((paper.IN_NUCLEUS, "rejected_in_nucleus"), (paper.IN_TOP_TEN, "rejected_in_top_ten")):
        cells = [(name, at(summary, "diagnostics", name, key)) for name in summary["diagnostics"]]
        row(entry, [(name, cell) for name, cell in cells if cell.text != NOTHING], times="")
    return table
