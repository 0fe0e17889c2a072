"""Arms of one suite differ in their speculative flags alone."""

import dataclasses
import json

from nsd_sglang.benchmarks import arms
from nsd_sglang.benchmarks.arms import Arm
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.settings import Settings


def test_the_comparison_has_every_kind_once_per_setting(settings):
    names = [arm.name for arm in arms.comparison(settings)]
    assert names == [
        "plain",
        "stock EAGLE",
        "stock EAGLE rejection, chain",
        "NSD 0.8 top-k",
        "NSD 0.95 top-k",
        "NSD 0.95 sampled",
    ]


def test_stock_and_nsd_have_the_same_tree(settings):
    _, stock, rejection, nsd, *_ = arms.comparison(settings)
    tree = stock.server_arguments[2:]
    assert nsd.server_arguments[2 : 2 + len(tree)] == tree
    assert stock.server_arguments[:2] == ("--speculative-algorithm", "EAGLE")
    assert nsd.server_arguments[2 + len(tree) :] == ("--nsd-threshold", "0.8", "--nsd-proposals", "topk", "--nsd-drafter", "eagle")
    assert (stock.num_steps, stock.topk, stock.num_draft_tokens) == (nsd.num_steps, nsd.topk, nsd.num_draft_tokens) == (4, 3, 12)
    assert (rejection.num_steps, rejection.topk, rejection.num_draft_tokens) == (4, 1, 5)
    assert rejection.server_arguments[-1] == "--speculative-use-rejection-sampling"


def test_a_standalone_draft_has_no_rejection_arm(settings):
    settings = dataclasses.replace(settings, family="standalone", proposals=["topk"])
    kinds = [(arm.kind, arm.algorithm) for arm in arms.comparison(settings)]
    assert kinds == [("plain", None), ("stock", "STANDALONE"), ("nsd", "NSD"), ("nsd", "NSD")]


def test_a_target_that_drafts_for_itself_names_no_draft(settings):
    settings = dataclasses.replace(settings, family="nextn", draft=None)
    assert not any("--speculative-draft-model-path" in arm.server_arguments for arm in arms.comparison(settings))
    assert arms.comparison(settings)[1].algorithm == "NEXTN"


def test_the_ablation_crosses_thresholds_with_lengths_and_adds_shapes(settings):
    shapes = [(arm.threshold, arm.num_steps, arm.topk, arm.num_draft_tokens) for arm in arms.ablation(settings)[1:]]
    lengths = [(t, *shape) for shape in ((2, 3, 7), (4, 3, 12), (6, 3, 17)) for t in (0.8, 0.95)]
    assert shapes == [*lengths, (0.95, 4, 1, 5), (0.95, 4, 4, 16)]
    assert len({arm.name for arm in arms.ablation(settings)}) == 9


def test_shapes_of_a_chain_stay_chains(settings):
    settings = dataclasses.replace(settings, num_steps=3, eagle_topk=1, num_draft_tokens=4)
    shapes = {(arm.num_steps, arm.topk, arm.num_draft_tokens) for arm in arms.ablation(settings)[1:]}
    assert shapes == {(2, 1, 3), (3, 1, 4), (4, 1, 5), (3, 2, 8)}


def test_arms_and_settings_come_back_from_json(settings):
    for arm in arms.comparison(settings):
        assert Arm.from_json(json.loads(json.dumps(arm.to_json()))) == arm
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_a_derived_arm_keeps_what_it_does_not_change(settings):
    base = arms.nsd(settings, 0.95)
    ruled = base.extended("top-m", "--nsd-gate", "top-m", gate="top-m")
    assert ruled.gate == "top-m" and ruled.server_arguments == (*base.server_arguments, "--nsd-gate", "top-m")
    assert (ruled.threshold, ruled.num_draft_tokens) == (0.95, 12) and base.gate is None


def test_servers_of_all_arms_differ_in_the_arms_arguments_alone(settings, tmp_path):
    context = Context(tmp_path, settings, arms.comparison(settings))
    first = context.server(context.arms[0], "comparison", repeat=2)
    for arm in context.arms:
        server = context.server(arm, "comparison", ["--more"], repeat=2)
        words = [word for word in server.command if word not in (*arm.server_arguments, "--more", str(server.port))]
        assert words == [word for word in first.command if word != str(first.port)]
        assert server.environment == first.environment
    assert first.command[first.command.index("--random-seed") + 1] == "7"
    assert first.environment["SGLANG_ENABLE_METRICS_DEVICE_TIMER"] == "1"
