"""Flags, environment twins and what they accept."""

import argparse

import pytest

from nsd_sglang import options
from nsd_sglang.options import NSDOptions, OptionError, from_namespace


def parse(*words, environment=None):
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return from_namespace(parser.parse_args(words), environment or {})


def test_defaults():
    assert parse() == NSDOptions()
    assert NSDOptions().threshold == 0.95


def test_every_option_has_a_flag_an_environment_twin_and_help():
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    for field in NSDOptions.__dataclass_fields__:
        assert options.flag(field) in text
        assert f"environment twin {options.environment_name(field)}" in text


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default():
    environment = {"NSD_THRESHOLD": "0.5", "NSD_DRAFTER": "EAGLE3"}
    assert parse(environment=environment) == NSDOptions(threshold=0.5, drafter="eagle3")
    assert parse("--nsd-threshold", "0.25", environment=environment).threshold == 0.25


@pytest.mark.parametrize("text, value", [("0", 0.0), ("1", 1.0), ("1e-3", 1e-3), (".95", 0.95)])
def test_threshold_accepts_the_unit_interval_with_its_ends(text, value):
    assert parse("--nsd-threshold", text).threshold == value


@pytest.mark.parametrize("text", ["1.5", "-0.1", "nan", "inf", "high", ""])
def test_threshold_refuses_the_rest_and_names_flag_and_range(text):
    with pytest.raises(OptionError) as error:
        parse(f"--nsd-threshold={text}")
    assert str(error.value) == f"--nsd-threshold accepts a number from 0 to 1, got {text!r}"


def test_a_refused_variable_is_named_instead_of_the_flag():
    with pytest.raises(OptionError, match="^NSD_VERIFY_BACKEND accepts one of auto, triton, torch, got 'cuda'$"):
        parse(environment={"NSD_VERIFY_BACKEND": "cuda"})


@pytest.mark.parametrize(
    "words, message",
    [
        (("--nsd-drafter", "medusa"), "--nsd-drafter accepts one of auto, eagle, eagle3, nextn, standalone, got 'medusa'"),
        (("--nsd-proposals", "beam"), "--nsd-proposals accepts one of topk, sampled, got 'beam'"),
        (("--nsd-candidates", "0"), "--nsd-candidates accepts a whole number from 1 to 1024, got '0'"),
        (("--nsd-candidates", "6.5"), "--nsd-candidates accepts a whole number from 1 to 1024, got '6.5'"),
    ],
)
def test_other_values_are_refused_by_name(words, message):
    with pytest.raises(OptionError) as error:
        parse(*words)
    assert str(error.value) == message


@pytest.mark.parametrize("gate, parameter, got", [("top-m", "3", 3.0), ("multiplicative", None, 2.0), ("typical", "0", 0.0)])
def test_a_rival_gate_takes_its_parameter_as_the_threshold(gate, parameter, got):
    chosen = parse(*("--nsd-gate", gate), *(("--nsd-gate-parameter", parameter) if parameter else ()))
    assert (chosen.gate, chosen.gate_parameter, chosen.threshold) == (gate, got, got)
    assert parse(environment={"NSD_GATE": gate, "NSD_GATE_PARAMETER": parameter or "2"}).threshold == got
    assert parse().gate == "nucleus" and parse().gate_parameter is None


@pytest.mark.parametrize(
    "words, message",
    [
        (("--nsd-gate", "naive"), "--nsd-gate accepts one of nucleus, greedy-margin, greedy-ratio, additive, multiplicative, top-m, typical, got 'naive'"),
        (("--nsd-gate", "additive", "--nsd-gate-parameter", "x"), "--nsd-gate-parameter accepts a number, got 'x'"),
        (("--nsd-gate", "additive", "--nsd-gate-parameter", "1.5"), "--nsd-gate-parameter accepts a number from 0 to 1 with --nsd-gate additive, got 1.5"),
        (("--nsd-gate", "top-m", "--nsd-gate-parameter", "nan"), "--nsd-gate-parameter accepts a whole number from 0 to 1024 with --nsd-gate top-m, got nan"),
        (("--nsd-gate", "greedy-ratio", "--nsd-gate-parameter", "0.5"), "--nsd-gate-parameter accepts 0 or a number from 1 to 1e+06 with --nsd-gate greedy-ratio, got 0.5"),
        (("--nsd-gate-parameter", "0.5"), "--nsd-gate-parameter accepts nothing with --nsd-gate nucleus, which has --nsd-threshold, got 0.5"),
        (("--nsd-gate", "typical", "--nsd-threshold", "0.5"), "--nsd-threshold accepts only --nsd-gate nucleus, got --nsd-gate typical, which has --nsd-gate-parameter"),
    ],
)
def test_gate_errors_name_the_option_and_what_it_accepts(words, message):
    with pytest.raises(OptionError) as error:
        parse(*words)
    assert str(error.value) == message
