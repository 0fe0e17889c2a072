"""Figures from a trace written by hand, and the suite that records one."""

import json
import operator
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsd_sglang.benchmarks import diagnostics, kl_certificates, trace_figures
from nsd_sglang.benchmarks.certified import Law, certified
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.kernels.gates import GATES

HEADER = {"schema": 1, "kind": "nsd-trace"}


def node(depth, outcome, *, p, rank, above, sd, kept, q=None, children=None, **measured):
    """A visited node; children are tokens 10, 11, ... unless given."""
    measured = {"e_s": 0.0, "r": 0.0, "target_entropy": 0.0, "draft_entropy": None, "kl": None} | measured
    children = children or [10 + i for i in range(len(p))]
    return dict(depth=depth, outcome=outcome, p=p, q=q, rank=rank, above=above, sd=sd, kept=kept, children=children, **measured)


def chain(depth, outcome, rank, above, *, p=0.1, **measured):
    """A position of a chain: one child, with a recorded law."""
    kept = None if outcome == "rejected" else 0
    sd = 0 if outcome == "accepted" else None
    defaults = {"draft_entropy": 0.0, "kl": 0.0, "top": [0.6, 0.3, 0.1]} | measured
    return node(depth, outcome, p=[p], q=[0.5], rank=[rank], above=[above], sd=sd, kept=kept, **defaults)


CHAIN = [
    [
        chain(0, "accepted", 1, 0.0, r=0.1, e_s=0.1, target_entropy=1.0, draft_entropy=0.5, kl=0.25),
        chain(1, "rescued", 2, 0.4, r=0.6, e_s=0.5, target_entropy=2.0, draft_entropy=1.0, kl=0.5),
        chain(2, "rejected", 30, 0.97, r=0.8, e_s=0.0, target_entropy=3.0, draft_entropy=1.5, kl=None),
    ],
    [
        chain(0, "rescued", 10, 0.7, r=0.4, e_s=0.3, target_entropy=4.0, draft_entropy=2.0, kl=0.75),
        chain(1, "rejected", 20, 0.2, p=0.0, r=0.2, e_s=0.2, target_entropy=5.0, draft_entropy=2.5, kl=1.5),
    ],
    [],
]
TREE = [
    [
        # The first child was turned down, the second taken, the third never tried.
        node(0, "accepted", p=[0.2, 0.3, 0.1], rank=[3, 1, 4], above=[0.5, 0.0, 0.7], sd=1, kept=1, r=0.4, e_s=0.4),
        # All turned down, one of them twice in the list; the second was rescued.
        node(1, "rescued", p=[0.01, 0.2, 0.01], rank=[11, 2, 11], above=[0.96, 0.6, 0.96], sd=None, kept=1,
             children=[7, 8, 7], r=0.8, e_s=0.8),
        # A law without these children: nothing was tried.
        node(2, "rejected", p=[0.1], q=[0.0], rank=[1], above=[0.0], sd=None, kept=None, e_s=None, r=None),
    ]
]  # fmt: skip


def write(path, steps, header=HEADER):
    lines = [header, *({"step": i, "row": 0, "rid": "a", "nodes": nodes} for i, nodes in enumerate(steps))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def histogram(*ranks):
    counts = [0] * 21
    for rank in ranks:
        counts[min(rank, 21) - 1] += 1
    return counts


def test_figures_of_a_chain(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_figures, "certified", lambda laws: {"kl": [law.kl for law in laws]})
    figures = diagnostics.aggregate({"chain": [write(tmp_path / "t.jsonl", CHAIN)]})["arms"]["chain"]
    assert figures == {
        "steps": 3,
        "nodes": 5,
        "nucleus": 0.95,
        "core": 0.5,
        "rejected": 4,
        "rejected_in_nucleus": 2 / 4,
        "rank_histogram": histogram(2, 30, 10, 20),
        "rejected_in_top_ten": 2 / 4,
        "rank_histogram_in_nucleus": histogram(2, 10),
        "in_nucleus_in_top_ten": 1.0,
        "rescues": 2,
        "expected_rescues": pytest.approx(1.1),
        "rescues_in_core": 1 / 2,
        "target_entropy": {"accepted": 1.0, "rescued": 3.0, "rejected": 4.0},
        "draft_entropy": {"accepted": 0.5, "rescued": 1.5, "rejected": 2.0},
        "e_s_by_depth": pytest.approx([0.2, 0.35, 0.0]),
        "r_by_depth": pytest.approx([0.25, 0.4, 0.8]),
        "acceptance_by_depth": [1.0, 0.5, 0.0],
        "sd_acceptance_by_depth": [0.5, 0.0, 0.0],
        "kl_by_depth": [0.5, 1.0, None],
        "kl_infinite": 1 / 5,
        "kl_certificates": {"kl": [0.25, 0.5, None, 0.75, 1.5]},
    }


def test_a_tree_counts_the_children_that_were_tried_and_turned_down(tmp_path):
    figures = diagnostics.aggregate({"tree": [write(tmp_path / "t.jsonl", TREE)]})["arms"]["tree"]
    assert (figures["steps"], figures["nodes"], figures["rejected"]) == (1, 2, 3)
    assert figures["rank_histogram"] == histogram(3, 11, 2)
    assert figures["rejected_in_nucleus"] == pytest.approx(2 / 3)
    assert figures["acceptance_by_depth"] == [1.0, 1.0] and figures["sd_acceptance_by_depth"] == [1.0, 0.0]
    assert figures["draft_entropy"] == {"accepted": None, "rescued": None, "rejected": None}
    assert figures["kl_by_depth"] == [None, None] and figures["kl_certificates"] == {}
    assert figures["rescues_in_core"] == 0.0


def test_another_nucleus_and_core(tmp_path):
    trace = write(tmp_path / "t.jsonl", CHAIN)
    figures = diagnostics.aggregate({"a": [trace]}, nucleus=0.5, core=0.8)["arms"]["a"]
    assert figures["rejected_in_nucleus"] == 1 / 4 and figures["rescues_in_core"] == 1.0


def test_several_files_add_up_and_an_empty_trace_has_no_shares(tmp_path):
    one, two = write(tmp_path / "a.jsonl", CHAIN), write(tmp_path / "b.jsonl", TREE)
    empty = write(tmp_path / "c.jsonl", [])
    arms = diagnostics.aggregate({"both": [one, two], "none": [empty]})["arms"]
    assert (arms["both"]["steps"], arms["both"]["rejected"]) == (4, 7)
    assert arms["none"]["rejected_in_nucleus"] is None and arms["none"]["acceptance_by_depth"] == []
    json.dumps(arms, allow_nan=False)


def test_a_last_line_cut_short_is_left_out_and_a_broken_one_is_an_error(tmp_path):
    trace = write(tmp_path / "t.jsonl", CHAIN)
    whole = trace.read_text()
    trace.write_text(whole + '{"step":4,"nod')
    assert len(list(trace_figures.read_trace(trace))) == 3
    trace.write_text(whole.replace('"row": 0', '"row": ', 1))
    with pytest.raises(BenchError, match="line 2: this is no JSON"):
        list(trace_figures.read_trace(trace))


@pytest.mark.parametrize("header", [{"schema": 2, "kind": "nsd-trace"}, {"schema": 1}, [1]])
def test_another_file_is_refused(tmp_path, header):
    with pytest.raises(BenchError, match="accepted is what --nsd-trace of this version writes"):
        list(trace_figures.read_trace(write(tmp_path / "t.jsonl", [], header)))


def test_arms_are_the_papers_chain_and_the_runs_tree(settings):
    made = diagnostics.recorded_arms(settings)
    assert [(arm.name, arm.proposals, arm.topk) for arm in made] == [
        ("NSD 0.95 sampled, chain", "sampled", 1),
        ("NSD 0.95 top-k", "topk", 3),
        ("NSD 0.95 sampled", "sampled", 3),
    ]
    chain = replace(settings, eagle_topk=1, num_draft_tokens=5, thresholds=[0.5, 0.8])
    assert [arm.name for arm in diagnostics.recorded_arms(chain)] == ["NSD 0.8 sampled, chain", "NSD 0.8 top-k"]


# Stands in for launch_server: one verify step a request, with the request's body beside it.
RECORDER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
args = sys.argv[1:]
value = lambda name: args[args.index(name) + 1]
if value("--nsd-proposals") == REFUSED:
    sys.exit("no such proposals")
trace = open(value("--nsd-trace"), "w")
print(json.dumps(HEADER), file=trace, flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        trace.write(json.dumps({"body": body, "nodes": NODES}) + chr(10))
        trace.flush()
        self.do_GET()
        self.wfile.write(b"{}")
    def log_message(self, *_):
        pass
ThreadingHTTPServer((value("--host"), int(value("--port"))), Handler).serve_forever()
"""


@pytest.fixture
def context(settings, tmp_path):
    lines = [{"conversations": [{"content": f"prompt {i}"}, {"content": "-"}]} for i in range(30)]
    Path(settings.dataset_path).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def make(refused=None, **changed):
        constants = f"REFUSED, HEADER, NODES = {refused!r}, {HEADER!r}, {CHAIN[0]!r}"
        program = [sys.executable, "-c", constants + RECORDER]
        return Context(tmp_path / "run", replace(settings, **changed), [], program=program)

    (tmp_path / "run").mkdir()
    return make


def test_a_run_records_every_arm_and_resumes_at_the_one_that_failed(context, tmp_path):
    first = context(refused="topk", request_body={"sampling_params": {"top_p": 0.9}})
    assert diagnostics.steps(first) == 3
    diagnostics.run(first)
    assert len(first.failures) == 1 and "diagnostics: NSD 0.95 top-k" in first.failures[0]
    written = json.loads((tmp_path / "run" / "diagnostics.json").read_text())
    assert list(written["arms"]) == ["NSD 0.95 sampled, chain", "NSD 0.95 sampled"]
    figures = written["arms"]["NSD 0.95 sampled"]
    assert (figures["steps"], figures["rejected"]) == (24, 48)
    trace = tmp_path / "run" / "traces" / "nsd-0.95-sampled-chain.jsonl"
    bodies = [line["body"] for line in trace_figures.read_trace(trace)]
    assert sorted(body["text"] for body in bodies) == sorted(f"prompt {i}" for i in range(24))
    wanted = {"temperature": 1.0, "max_new_tokens": 64, "ignore_eos": True, "top_p": 0.9}
    assert all(body["sampling_params"] == wanted for body in bodies)

    before = trace.stat().st_mtime_ns
    again = context()
    assert diagnostics.steps(again) == 1
    diagnostics.run(again)
    assert not again.failures and diagnostics.steps(again) == 0
    assert len(json.loads((tmp_path / "run" / "diagnostics.json").read_text())["arms"]) == 3
    assert trace.stat().st_mtime_ns == before


def test_greedy_runs_are_recorded_at_temperature_1(context, tmp_path):
    made = context(temperature=0.0, proposals=[])
    diagnostics.run(made)
    assert not made.failures
    [line, *_] = trace_figures.read_trace(tmp_path / "run" / "traces" / "nsd-0.95-sampled-chain.jsonl")
    assert line["body"]["sampling_params"]["temperature"] == 1.0


def test_certificates_of_recorded_heads_are_those_of_the_rows():
    torch.manual_seed(0)
    rows = torch.softmax(3 * torch.randn(40, 500, dtype=torch.float64), -1)
    drafts = torch.softmax(rows.log() + 0.4 * torch.randn(40, 500, dtype=torch.float64), -1)
    heads, entropies = rows.topk(64).values.tolist(), torch.special.entr(rows).sum(-1).tolist()
    kl = [kl_certificates.divergence(p, q, "q||p") for p, q in zip(rows, drafts)]
    figures = certified(list(map(Law, kl, heads, entropies)))
    shares = []
    for name, gate in GATES.items():
        found = figures[f"{name} {gate.symbol}={gate.default:g}"]
        if gate.upper:
            exact = kl_certificates.certificate(name, gate.default, rows, "q||p").tolist()
            kept = kl_certificates._kept(name, gate.default, rows.sort(dim=-1, descending=True).values).sum(-1)
            assert found["beyond_head"] == sum(count >= 64 for count in kept) / 40
            exact = [0.0 if count >= 64 else limit for limit, count in zip(exact, kept)]
        else:
            exact = [kl_certificates.minimal_kl(name, gate.default, "q||p")] * 40
        assert found["certified"] == sum(map(operator.lt, kl, exact)) / 40
        shares.append(found["certified"])
    assert len(set(shares)) > 3 and figures["nucleus theta=0.95"]["beyond_head"] > 0


def test_an_infinite_divergence_is_never_certified():
    near, far = Law(0.0, [0.9, 0.1], 0.3), Law(None, [0.9, 0.1], 0.3)
    assert certified([near, far])["greedy-margin m=0.3"]["certified"] == 0.5
    assert certified([]) == {}
