"""Bad options are refused in one line that names the option, before anything is fetched or started."""

import argparse

import pytest

from nsd_sglang.demo import command


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    monkeypatch.setattr(command, "_run", lambda args: pytest.fail("the demo was started"))


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--threshold", "1.5", "0 to 1"),
        ("--threshold", "-0.1", "0 to 1"),
        ("--threshold", "nan", "0 to 1"),
        ("--threshold", "high", "0 to 1"),
        ("--num-prompts", "0", "1 to 162"),
        ("--num-prompts", "163", "1 to 162"),
        ("--num-prompts", "2.5", "a whole number"),
        ("--concurrency", "0", "1 to 64"),
        ("--max-new-tokens", "1", "2 to 1024"),
        ("--temperature", "-1", "0 to 2"),
        ("--seed", "-1", "0 to"),
        ("--num-steps", "0", "1 to 8"),
        ("--eagle-topk", "9", "1 to 8"),
        ("--num-draft-tokens", "1", "2 to 64"),
    ],
)
def test_values_outside_the_range(option, value, accepted, capsys):
    with pytest.raises(SystemExit) as left:
        parsed(f"{option}={value}")
    assert left.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert option in message and repr(value) in message and accepted in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--eagle-topk=1", "--num-draft-tokens=10"], ["--num-draft-tokens 10", "5"]),
        (["--num-steps=2", "--eagle-topk=2", "--num-draft-tokens=8"], ["--num-draft-tokens 8", "at most 7"]),
        (["--json=missing-directory/x.json"], ["--json missing-directory/x.json", "existing directory"]),
        (["--proposals=sampled", "--candidates=2"], ["--candidates 2", "--eagle-topk, 3, or more"]),
        (["--json=."], ["--json .", "existing directory"]),
        (["--cache-dir=/dev/null/x"], ["--cache-dir /dev/null/x"]),
    ],
)
def test_values_that_do_not_fit_together(words, expected, capsys):
    assert command.run(parsed(*words)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and all(part in lines[0] for part in expected)


@pytest.mark.parametrize(
    "words", [[], ["--eagle-topk=1", "--num-draft-tokens=5"], ["--num-steps=2", "--eagle-topk=2", "--num-draft-tokens=7"]]
)
def test_good_values_reach_the_run(words, monkeypatch):
    monkeypatch.setattr(command, "_run", lambda args: 0)
    assert command.run(parsed(*words)) == 0


def test_arms_differ_in_speculation_alone(tmp_path):
    arms = command.server_arguments(parsed("--threshold=0.8"), tmp_path / "target", tmp_path / "head")
    plain, stock, nsd = arms.values()
    assert not any("speculative" in word for word in plain)
    assert stock[: len(plain)] == plain and nsd[: len(plain)] == plain
    assert [word for word in nsd if word not in stock] == ["NSD", "--nsd-threshold", "0.8", "--nsd-proposals", "topk"]
    assert [word for word in stock if word not in nsd] == ["EAGLE"]


def test_the_drafter_chooses_stock_speculation_and_nsds_proposals_are_passed_on(tmp_path):
    words = ["--drafter=standalone", "--proposals=sampled", "--candidates=8"]
    _, stock, nsd = command.server_arguments(parsed(*words), tmp_path / "target", tmp_path / "draft").values()
    assert "STANDALONE" in stock and "--nsd-proposals" not in stock
    assert " ".join(nsd).count("--nsd-proposals sampled --nsd-candidates 8") == 1


def test_failures_and_interrupts_have_exit_codes(monkeypatch, capsys):
    def fails(args):
        raise command.DemoError("the reason")

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", fails)
    assert command.run(parsed()) == 1
    assert capsys.readouterr().err == "nsd-sglang demo: the reason\n"
    monkeypatch.setattr(command, "_run", interrupted)
    assert command.run(parsed()) == 130
