"""Arms of the rival rules: same tree and proposals, a rule and its parameter each, and flags that the server accepts."""

import argparse

import pytest

from nsd_sglang import options
from nsd_sglang.benchmarks import rules
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.kernels.gates import GATES


def parsed(arm):
    """The NSD options of an arm as its server reads them."""
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.from_namespace(parser.parse_known_args(list(arm.server_arguments))[0], {})


@pytest.mark.parametrize("proposals", ["sampled", "topk"])
def test_every_rule_has_one_arm_with_the_same_tree_and_drafts(settings, proposals):
    plain, exact, *arms = rules.rule_arms(settings, proposals=proposals)
    assert plain.kind == "plain" and parsed(exact).threshold == 0.0 and parsed(exact).gate == "nucleus"
    assert [arm.gate for arm in arms] == list(GATES) and len({arm.name for arm in arms}) == len(arms)
    for arm in arms:
        server = parsed(arm)
        assert server.gate == arm.gate and server.threshold == arm.threshold == GATES[arm.gate].default
        assert (server.proposals, server.candidates) == (proposals, parsed(exact).candidates) == (arm.proposals, server.candidates)
        assert (arm.num_steps, arm.topk, arm.num_draft_tokens) == (exact.num_steps, exact.topk, exact.num_draft_tokens)
        own = ("--nsd-threshold", "--nsd-gate", "--nsd-gate-parameter")
        assert without(arm, own) == without(exact, own)


def without(arm, names):
    """Server arguments with some options and their values left out."""
    words = list(arm.server_arguments)
    return [word for i, word in enumerate(words) if word not in names and (i == 0 or words[i - 1] not in names)]


def test_the_bench_takes_the_default_arms(settings):
    assert rules.arms(settings) == rules.rule_arms(settings)


def test_parameters_choose_rules_and_are_checked(settings):
    arms = rules.rule_arms(settings, {"top-m": 5, "nucleus": 0.8})
    assert [(arm.gate, arm.threshold) for arm in arms[2:]] == [("top-m", 5), ("nucleus", 0.8)]
    with pytest.raises(BenchError, match="rules: top-m accepts a whole number from 0 to 1024, got 1.5"):
        rules.rule_arms(settings, {"top-m": 1.5})
    with pytest.raises(BenchError, match="rules: a gate is one of nucleus, greedy-margin"):
        rules.rule_arms(settings, {"naive": 1.0})
