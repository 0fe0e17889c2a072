"""What `--nsd-trace` records: figures by hand and by brute force, and what it does when off, full, unwritable or not rank 0."""

import json
import logging
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from kernel_cases import CHAIN, TREE, random_case

from nsd_sglang import trace
from nsd_sglang.acceptance import NucleusAcceptance
from nsd_sglang.kernels.types import Proposals
from nsd_sglang.kernels.verify import verify_tree
from nsd_sglang.options import NSDOptions
from nsd_sglang.trace_nodes import NODE_FIELDS, VerifyStep, describe


def step_of(case: dict, **changed) -> VerifyStep:
    """The step that verifying a case of `verify_tree` makes."""
    case = case | changed
    result = verify_tree(**case)
    names = ("candidates", "retrieve_next_token", "retrieve_next_sibling", "target_probs", "coins")
    tensors = [case[name] for name in names]
    return VerifyStep(*tensors, case.get("sibling_coins"), case["threshold"], case.get("proposals"), result, "torch")


def one_node(p, children, coin, threshold, law=None) -> dict:
    """The record of a root with these children, which are leaves. law: {token: q}, or None for top-k proposals."""
    nodes = len(children) + 1
    proposals = sibling_coins = None
    if law is not None:
        ids, q = torch.tensor([list(law)]), torch.tensor([list(law.values())])
        proposals = Proposals(ids.expand(1, nodes, -1), q.expand(1, nodes, -1))
        sibling_coins = torch.zeros(1, nodes)
    case = dict(
        candidates=torch.tensor([[9, *children]]),
        retrieve_next_token=torch.tensor([[1] + [-1] * len(children)]),
        retrieve_next_sibling=torch.tensor([[-1, *range(2, nodes), -1]]),
        target_probs=torch.tensor(p).expand(1, nodes, -1),
        coins=torch.full((1, nodes), coin),
        final_coins=torch.zeros(1),
        threshold=torch.tensor([threshold]),
        max_depth=2,
        proposals=proposals,
        sibling_coins=sibling_coins,
    )
    [[node]] = describe(step_of(case))
    return node


def entropy(*law):
    return -sum(x * math.log(x) for x in law)


def test_a_rescued_child_of_a_chain_by_hand():
    # The test asks 0.5 < 0.3 / 0.75; the nucleus at 0.8 is {0, 1}.
    node = one_node([0.6, 0.3, 0.1], [1], 0.5, 0.8, law={1: 0.75, 2: 0.25})
    numbers = dict(w=0.6, r=0.45 + 0.15, e_s=0.45, kl=math.log(2.5), kl_reverse=0.0, covered=0.4)
    numbers |= dict(target_entropy=entropy(0.6, 0.3, 0.1), draft_entropy=entropy(0.75, 0.25))
    assert {name: node[name] for name in numbers} == pytest.approx(numbers, abs=1e-6)
    assert (node["p"], node["q"], node["rank"]) == ([pytest.approx(0.3)], [0.75], [2])
    assert node["above"] == [pytest.approx(0.6)]
    assert (node["sd"], node["kept"], node["outcome"], node["token"]) == (None, 0, "rescued", 1)
    assert set(node) == set(NODE_FIELDS)


@pytest.mark.parametrize(
    "coin, threshold, outcome, token",
    [(0.39, 0.8, "accepted", 1), (0.41, 0.8, "rescued", 1), (0.41, 0.6, "rejected", 0), (0.41, 0.0, "rejected", 0)],
)
def test_outcomes(coin, threshold, outcome, token):
    node = one_node([0.6, 0.3, 0.1], [1], coin, threshold, law={1: 0.75, 2: 0.25})
    assert (node["outcome"], node["token"]) == (outcome, token)
    assert node["sd"] == (0 if outcome == "accepted" else None)
    assert node["kept"] == (None if outcome == "rejected" else 0)
    assert node["e_s"] == pytest.approx(0.45 if threshold == 0.8 else 0.0)


@pytest.mark.parametrize(
    "coin, threshold, sd, kept, outcome, e_s",
    [(0.29, 0.6, 0, 0, "accepted", 0.55), (0.40, 0.6, 1, 1, "accepted", 0.55), (0.46, 0.6, None, 0, "rescued", 0.55),
     (0.46, 0.5, None, None, "rejected", 0.0)],
)  # fmt: skip
def test_top_k_proposals_are_point_masses(coin, threshold, sd, kept, outcome, e_s):
    node = one_node([0.5, 0.3, 0.15, 0.05], [1, 2], coin, threshold)
    assert (node["sd"], node["kept"], node["outcome"], node["rank"]) == (sd, kept, outcome, [2, 3])
    assert [node["r"], node["w"], node["e_s"]] == pytest.approx([0.55, 0.55, e_s])
    assert all(node[name] is None for name in ("q", "draft_entropy", "kl", "kl_reverse", "covered"))


def test_ties_share_a_rank_and_what_the_target_excludes_is_in_no_nucleus():
    node = one_node([0.25, 0.25, 0.5, 0.0], [1, 3], 0.99, 1.0, law={1: 0.5, 3: 0.5})
    assert (node["rank"], node["above"], node["p"]) == ([2, 4], [0.5, 1.0], [0.25, 0.0])
    assert node["kl"] is None and node["r"] == 0.75 and node["e_s"] == 0.25


def test_a_request_without_a_recorded_law():
    node = one_node([0.6, 0.3, 0.1], [1], 0.1, 0.5, law={-1: 0.0})
    assert node["q"] == [0.0] and node["sd"] is None and node["outcome"] == "rejected"
    assert all(node[name] is None for name in ("r", "e_s", "draft_entropy", "kl", "kl_reverse", "covered"))


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("parents", [CHAIN, TREE])
def test_random_steps_against_brute_force(parents, sampled, monkeypatch):
    monkeypatch.setattr("nsd_sglang.trace_nodes._ROWS_AT_ONCE", 3)  # several portions a step
    outcomes = []
    for seed in range(12):
        case = random_case(seed, parents, 40, sampled=sampled)
        step = step_of(case)
        standard = step_of(case, threshold=torch.zeros(5)).result
        described = describe(step)
        for b, nodes in enumerate(described):
            theta = case["threshold"][b].item()
            outcomes += [node["outcome"] for node in nodes]
            assert [node["depth"] for node in nodes] == list(range(len(nodes)))
            assert sum(node["outcome"] == "rescued" for node in nodes) == step.result.rescued[b]
            assert sum(node["kept"] is not None for node in nodes) == step.result.num_correct_drafts[b]
            if theta > 0:
                assert sum(node["w"] for node in nodes) == pytest.approx(step.result.tv_bound[b].item(), abs=1e-5)
            # Up to its first failure the walk is the standard one.
            first = next((d for d, node in enumerate(nodes) if node["sd"] is None), len(nodes))
            assert standard.num_correct_drafts[b] == first
            for node in nodes:
                brute_force(case, b, node, theta)
    assert {"accepted", "rescued", "rejected"} <= set(outcomes)


def brute_force(case, b, node, theta):
    p = case["target_probs"][b, node["node"]].double()

    def inside(token):
        return p[token] > 0 and (theta >= 1 or p[p > p[token]].sum() < theta)

    assert node["p"] == pytest.approx([p[token].item() for token in node["children"]], rel=1e-4)
    assert node["above"] == pytest.approx([p[p > p[token]].sum().item() for token in node["children"]], abs=1e-5)
    assert node["rank"] == [1 + int((p > p[token]).sum()) for token in node["children"]]
    assert node["target_entropy"] == pytest.approx(entropy(*p.tolist()), abs=1e-4)
    assert node["top"] == pytest.approx(sorted(p.tolist(), reverse=True), abs=1e-5)
    if case.get("proposals") is None:
        r = 1 - sum(p[token].item() for token in set(node["children"]))
        assert [node["r"], node["e_s"]] == pytest.approx([r, r * any(map(inside, node["children"]))], abs=1e-5)
        return
    law = {t: q for t, q in zip(*(part[b, node["node"]].tolist() for part in case["proposals"]))}
    assert node["q"] == pytest.approx([law[token] for token in node["children"]], rel=1e-4)
    excess = {token: max(q - p[token].item(), 0) for token, q in law.items()}
    assert node["r"] == pytest.approx(sum(excess.values()), abs=1e-5)
    assert node["e_s"] == pytest.approx(sum(x for token, x in excess.items() if inside(token)), abs=1e-5)
    assert node["draft_entropy"] == pytest.approx(entropy(*law.values()), abs=1e-4)
    assert node["kl"] == pytest.approx(sum(q * math.log(q / p[t].item()) for t, q in law.items()), abs=1e-4)
    covered = sum(p[token].item() for token in law)
    reverse = sum(p[t].item() / covered * math.log(p[t].item() / covered / q) for t, q in law.items())
    assert [node["covered"], node["kl_reverse"]] == pytest.approx([covered, reverse], abs=1e-4)


@pytest.fixture
def options(tmp_path):
    return NSDOptions(trace=str(tmp_path / "trace.jsonl"), trace_max_mb=1)


def lines_of(path):
    return [json.loads(line) for line in open(path)]


def record(recorder, seed=0, batch=None):
    step = step_of(random_case(seed, TREE, 40, sampled=True))
    recorder.record(batch or SimpleNamespace(), step)
    return step


def test_a_header_then_one_line_for_each_request_and_step(options):
    recorder = trace.Trace(options)
    step = record(recorder, 0, SimpleNamespace(reqs=[SimpleNamespace(rid=f"r{i}") for i in range(5)]))
    record(recorder, 1)
    header, *lines = lines_of(options.trace)
    assert header["schema"] == trace.SCHEMA and header["options"]["threshold"] == 0.95
    assert header["node_fields"] == NODE_FIELDS
    assert [(line["step"], line["row"], line["rid"]) for line in lines[:5]] == [(0, i, f"r{i}") for i in range(5)]
    assert [(line["step"], line["rid"]) for line in lines[5:]] == [(1, None)] * 5
    assert [line["threshold"] for line in lines[:5]] == pytest.approx(step.threshold.tolist())
    assert [line["tv_bound"] for line in lines[:5]] == pytest.approx(step.result.tv_bound.tolist(), rel=1e-5)
    assert [line["nodes"] for line in lines[:5]] == describe(step)


def test_recording_stops_at_the_bound_with_one_log_line(options, monkeypatch, caplog):
    monkeypatch.setattr(trace, "_MB", 40_000)
    recorder = trace.Trace(options)
    with caplog.at_level(logging.WARNING, trace.__name__):
        for seed in range(20):
            record(recorder, seed)
    size = len(open(options.trace).read())
    assert 20_000 < size <= 40_000
    assert lines_of(options.trace)[-1]["row"] == 4  # whole steps
    assert [r.message for r in caplog.records if "--nsd-trace-max-mb 1 MB" in r.message] == [caplog.records[0].message]
    steps = recorder.steps
    monkeypatch.setattr(trace, "describe", lambda step: pytest.fail("work after the bound"))
    record(recorder)
    assert recorder.steps == steps and len(open(options.trace).read()) == size


def test_a_full_disk_ends_recording_not_serving(caplog):
    with caplog.at_level(logging.WARNING, trace.__name__):
        recorder = trace.Trace(NSDOptions(trace="/dev/full"))
        record(recorder)
        record(recorder)
    assert len(caplog.records) == 1 and "No space left" in caplog.records[0].message


@pytest.fixture
def parallel(monkeypatch):
    from sglang.srt import runtime_context

    ranks = SimpleNamespace(attn_tp_rank=0, attn_cp_rank=0, attn_dp_rank=0, dp_rank=None)
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: ranks)
    return ranks


def test_only_the_first_rank_records_and_replicas_have_files_of_their_own(options, parallel, tmp_path):
    assert trace.for_this_process(options).path.name == "trace.jsonl"
    parallel.dp_rank = 1
    assert trace.for_this_process(options).path.name == "trace.dp1.jsonl"
    parallel.attn_tp_rank = 1
    parallel.dp_rank = 2
    assert trace.for_this_process(options) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.dp1.jsonl", "trace.jsonl"]


def test_off_is_no_recorder_and_nothing_imported():
    assert trace.for_this_process(NSDOptions()) is None
    assert NucleusAcceptance(NSDOptions()).trace is None
    code = "import sys, nsd_sglang.acceptance; sys.exit('nsd_sglang.trace_nodes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_verify_step_hands_over_what_it_verified():
    """Through the acceptance: the record is of the step's own batch, coins and outcome."""
    recorded = []
    recorder = SimpleNamespace(record=lambda batch, step: recorded.append((batch, step)))
    acceptance = NucleusAcceptance(NSDOptions(threshold=0.8), recorder)
    batch = SimpleNamespace(reqs=[], spec_info=SimpleNamespace(topk=1), sampling_info=SimpleNamespace(sampling_seed=None))
    law = Proposals(torch.tensor([[[1, 2], [0, 0]]]), torch.tensor([[[0.75, 0.25], [0.0, 0.0]]]))
    with acceptance.step(batch, law):
        acceptance(
            predicts=torch.zeros(2, dtype=torch.int32),
            accept_index=torch.full((1, 2), -1, dtype=torch.int32),
            accept_token_num=torch.empty(1, dtype=torch.int32),
            candidates=torch.tensor([[5, 1]]),
            retrive_next_token=torch.tensor([[1, -1]]),
            retrive_next_sibling=torch.tensor([[-1, -1]]),
            uniform_samples=torch.tensor([[0.5, 0.0]]),
            uniform_samples_for_final_sampling=torch.tensor([0.0]),
            target_probs=torch.tensor([[[0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]]),
        )
    [(seen, step)] = recorded
    assert seen is batch
    [[node]] = describe(step)
    assert (node["outcome"], node["children"], node["e_s"]) == ("rescued", [1], pytest.approx(0.45))


@pytest.mark.parametrize("path", ["/nowhere/trace.jsonl", "/proc/trace.jsonl", "/tmp", ""])
def test_a_file_that_cannot_be_written_is_refused_with_the_options(path):
    from nsd_sglang.options import OptionError, from_namespace

    with pytest.raises(OptionError) as error:
        from_namespace(SimpleNamespace(nsd_trace=path), {})
    message = str(error.value)
    assert message.startswith("--nsd-trace accepts a file in an existing folder that can be written to (")
    assert message.endswith(f", got {path!r}") and "\n" not in message


def test_the_check_leaves_no_file_and_keeps_one(tmp_path):
    from nsd_sglang.options import from_namespace

    old = tmp_path / "old.jsonl"
    old.write_text("kept")
    for path in (tmp_path / "new.jsonl", old):
        assert from_namespace(None, {"NSD_TRACE": str(path)}).trace == str(path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"] and old.read_text() == "kept"


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "many", "1000001"])
def test_the_size_bound_is_a_whole_number_of_megabytes(text):
    from nsd_sglang.options import OptionError, from_namespace

    with pytest.raises(OptionError, match="^--nsd-trace-max-mb accepts a whole number from 1 to 1000000, got "):
        from_namespace(SimpleNamespace(nsd_trace_max_mb=text), {})
