"""The report as its reader gets it: one file, every figure from the summary, whatever the run left behind."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from nsd_sglang.benchmarks.figures import PICTURES
from nsd_sglang.benchmarks.report import build
from nsd_sglang.benchmarks.tables import headline, interval, show
from report_run import arm, diagnostics, full_run, nsd, unit, write_lines

HOSTILE = """<script>alert("1")</script> & 'x' $\\frac{1}$ _{{ run }}{% raw %}"""


class Page(HTMLParser):
    """Tags, text, and the cells that name a figure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.figures: list[tuple[str, list[str]]] = []
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self._cell = []
            if "data-figure" in dict(attrs):
                self.figures.append((dict(attrs)["data-figure"], self._cell))

    def handle_endtag(self, tag):
        self._cell = None if tag == "td" else self._cell

    def handle_data(self, data):
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)


def resolve(summary: object, pointer: str) -> object:
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        summary = summary[int(step)] if isinstance(summary, list) else summary[step]
    return summary


def check_figures(directory: Path) -> Page:
    summary = json.loads((directory / "summary.json").read_text())
    page = Page((directory / "report.html").read_text())
    for pointer, texts in page.figures:
        figure = resolve(summary, pointer)
        expected = [show(figure["value"]), interval(figure)] if isinstance(figure, dict) else [show(figure), ""]
        assert [texts[0].rstrip("×"), *texts[1:]] == [text for text in expected if text], pointer
    return page


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = full_run(tmp_path_factory.mktemp("finished") / "run")
    written = build(directory)
    assert [path.name for path in written] == ["summary.json", *PICTURES, "report.html"]
    return directory


def test_every_figure_in_the_tables_is_the_summarys(finished):
    page = check_figures(finished)
    shown = {pointer for pointer, _ in page.figures}
    summary = json.loads((finished / "summary.json").read_text())
    for index, group in enumerate(summary["groups"]):
        if group["suite"] == "comparison":
            assert {f"/groups/{index}/figures/{key}" for key in group["figures"]} <= shown
        assert {f"/groups/{index}/ratios/{kind}/figures/output_throughput" for kind in group["ratios"]} <= shown
    rule = "/diagnostics/NSD 0.8 top-k/kl_certificates/nucleus theta=0.95"
    assert {f"{rule}/certificate_nats", f"{rule}/share_below"} <= shown and "infinite" in page.text
    assert {"/diagnostics/NSD 0.8 top-k/e_s_by_depth/2", "/highest/nsd_over_stock"} <= shown


def test_headline_columns_hold_their_arms(finished):
    table = headline(json.loads((finished / "summary.json").read_text()))
    assert table.columns[:3] == ["plain, tokens/s", "stock EAGLE top-k, tokens/s", "NSD 0.95 top-k, tokens/s"]
    summary = json.loads((finished / "summary.json").read_text())
    for concurrency, _, cells in table.rows:
        groups = [resolve(summary, "/".join(cell.pointer.split("/")[:3])) for cell in cells]
        arms = ["plain", "stock EAGLE top-k"] + 4 * ["NSD 0.95 top-k"]
        assert [(g["arm"], g["concurrency"]) for g in groups] == [(name, int(concurrency)) for name in arms]
        assert [cell.pointer.split("/")[4] for cell in cells[3:5]] == ["stock", "plain"]
    assert len(table.rows) == 3


def test_one_file_without_scripts_or_network(finished):
    page = Page((finished / "report.html").read_text())
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [attributes["src"] for _, attributes in page.tags if "src" in attributes]
    assert len(sources) == len(PICTURES) and all(source.startswith("data:image/png;base64,") for source in sources)
    addresses = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {a for a in addresses if "//" in a} == {"https://arxiv.org/abs/2610.07822"}
    local = {a for a in addresses if not a.startswith(("#", "https:"))}
    assert "raw/comparison-0.jsonl" in local and all((finished / a).is_file() for a in local)
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    text = "".join(page.text)
    for expected in ("nsd-sglang bench --output 'DIR with spaces'", "Seed 7", "0.5.23", "a processor", "1.850×", "0.526", "0.815", "over 3 repeats"):
        assert expected in text


def test_pictures_are_pictures(finished):
    for name in PICTURES:
        content = (finished / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 10_000
    assert not list(finished.glob("*.partial"))


def test_building_twice_changes_nothing(finished):
    before = {name: (finished / name).read_bytes() for name in ("summary.json", "report.html", "pareto.png")}
    build(finished)
    assert all((finished / name).read_bytes() == content for name, content in before.items())


def test_repeats_that_an_arm_lacks_are_named_once(finished, tmp_path):
    lines = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    (tmp_path / "run.json").write_bytes((finished / "run.json").read_bytes())
    write_lines(tmp_path / "results.jsonl", [u for u in lines if u["suite"] == "comparison" and (u["arm"], u["repeat"]) != ("stock EAGLE top-k", 1)])
    build(tmp_path)
    text = "".join(check_figures(tmp_path).text)
    assert text.count("plain, NSD 0.8 top-k, NSD 0.9 top-k, NSD 0.95 top-k, NSD 0.99 top-k / stock: over the 2 repeats that both have.") == 3


def test_a_run_that_has_only_started(finished, tmp_path):
    run = json.loads((finished / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "throughput.png").write_bytes(b"of an earlier build")
    assert [path.name for path in build(tmp_path)] == ["summary.json", "report.html"]
    assert not (tmp_path / "throughput.png").exists()
    text = "".join(check_figures(tmp_path).text)
    for suite in ("comparison", "ablation", "rules", "diagnostics", "quality"):
        assert f"This run has no results of the {suite} suite." in text
    assert f"Not finished: {len(run['units'])} of {len(run['units'])} planned units." in text and "comparison: plain, concurrency 1, repeat 0" in text


def test_one_repeat_of_one_suite(tmp_path):
    directory = full_run(tmp_path / "run", repeats=1, concurrencies=(8,))
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    write_lines(directory / "results.jsonl", [line for line in lines if line["suite"] == "comparison"][:-1])
    for name in ("quality.jsonl", "diagnostics.json"):
        (directory / name).unlink()
    assert [path.stem for path in build(directory)] == ["summary", "throughput", "accepted_length", "pareto", "report"]
    text = "".join(check_figures(directory).text)
    assert "There was one repeat, so there are no intervals" in text and " to " not in "".join(t for _, ts in check_figures(directory).figures for t in ts)
    assert "comparison: NSD 0.99 top-k, concurrency 8, repeat 0" in text


def test_hostile_strings_are_text_everywhere(tmp_path):
    names = [HOSTILE, "_$\\frac{1}$\n\u202e名前 😀", "x" * 300]
    arms = [arm(names[0], "plain"), arm(names[1], "stock"), arm(names[2], "nsd", 0.95, gate=None, proposals=HOSTILE, server_arguments=[HOSTILE])]
    units = [unit("comparison", name, 1, repeat, 10.0 + repeat, **nsd(0.9, 2.0)) for name in names for repeat in (0, 1)]
    for line in units:
        line |= {"raw": "javascript:alert(1)", "command": [HOSTILE]}
    units += [{"suite": HOSTILE, "arm": HOSTILE, "concurrency": 1, "repeat": 0, "error": HOSTILE}, unit(HOSTILE, names[2], 2, 0, 5.0)]
    run = {"arms": arms, "units": [HOSTILE], "model": HOSTILE, "draft": HOSTILE, "started": HOSTILE, "seed": HOSTILE}
    run |= {"command": [HOSTILE], "versions": {HOSTILE: HOSTILE}, "machine": {HOSTILE: [HOSTILE]}, "settings": [HOSTILE]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    write_lines(tmp_path / "results.jsonl", units)
    certificates = {HOSTILE: {"certificate_nats": 0.25, "share_below": HOSTILE}, "a/b~c": {"certificate_nats": None}, "x": 3}
    (tmp_path / "diagnostics.json").write_text(json.dumps({"arms": {"a/b~" + HOSTILE: diagnostics(0.5) | {"kl_certificates": certificates}}}))
    answers = [{"suite": "quality", "arm": name, "prompt": HOSTILE, "text": HOSTILE, "tokens": 3, "logprob": -1.0, "finish": HOSTILE} for name in names]
    write_lines(tmp_path / "quality.jsonl", answers)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / 'a"b<c>#?.jsonl').write_text("")
    build(tmp_path)
    page = check_figures(tmp_path)
    assert "script" not in {tag for tag, _ in page.tags} and not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    addresses = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert not any(a.startswith("javascript") for a in addresses) and "raw/a%22b%3Cc%3E%23%3F.jsonl" in addresses
    assert "".join(page.text).count(HOSTILE) > 10


def test_diagnostics_may_lack_anything(tmp_path):
    directory = full_run(tmp_path / "run", repeats=1, concurrencies=(1,))
    (directory / "diagnostics.json").write_text(json.dumps({"arms": {"a": {"steps": 3}, "b": {"rank_histogram": [1, None, 2], "e_s_by_depth": "no", "nodes": float("nan")}, "c": 1}}))
    assert directory / "diagnostics.png" in build(directory)
    assert ("/diagnostics/a/steps", ["3"]) in check_figures(directory).figures


@pytest.mark.parametrize(
    "value, text",
    [(None, "–"), (float("nan"), "–"), (7, "7"), (12345, "12,345"), (0.0, "0"), (1234.6, "1,235"), (123.46, "123.5"), (12.346, "12.35"),
     (1.2346, "1.235"), (-0.12346, "-0.123"), (0.012346, "0.0123"), (0.00012346, "1.23e-04")],
)  # fmt: skip
def test_figures_are_shown_with_three_or_four_digits(value, text):
    assert show(value) == text
