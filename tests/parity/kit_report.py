"""Outcomes of `scripts/sglang_kits.py` as a page of the documentation."""

from __future__ import annotations

import json
from pathlib import Path

from kit_absent import FIXTURES, KITS
from kit_cases import CASES, PROFILES, REASONS, Case

HEAD = """# SGLang's own server kits

What SGLang 0.5.23 ships in its wheel under `sglang/test/kits` and `sglang/test/server_fixtures`, asked of NSD servers on a CPU
(float32). The kits are imported and run as they are; a server of ours takes the place of their fixture's. At T = 1 the same
code asks through a proxy that sets the temperature of every request to 1; tests that only the most likely answer can pass are
not asked there. This page is made from recorded outcomes by `scripts/sglang_kits.py --markdown`. Beside it `pytest tests/parity`
asks SpecPenaltyKit, SpecHiddenStatesKit, AbortAllMixin and six tests of RegexConstrainedMixin at T = 0 and T = 1 of a server at
threshold 1, and compares log-probabilities, hidden states, streams, reasoning, tool calls, structured output, aborts, flushes
and weight updates with plain decoding.

"""


def load(paths: list[Path]) -> list[dict]:
    """Runs as `sglang_kits.py --json` writes them: algorithm, server arguments, command and outcomes. A later run of a
    test replaces an earlier one with the same algorithm and arguments."""
    return [json.loads(path.read_text()) for path in paths]


def page(runs: list[dict]) -> str:
    """The whole page. runs: see `load`."""
    outcomes = {}
    for run in runs:
        for one in run["outcomes"]:
            key = (run["algorithm"], run["server_args"], one["profile"], one["kit"], one["test"], one["temperature"])
            outcomes[key] = one
    ours = {key[1:]: one for key, one in outcomes.items() if key[0] == "NSD"}
    parts = [HEAD, "## Results\n\n"]
    order = sorted({key[0] for key in ours})
    for server_args in order:
        if server_args:
            parts.append(f"\nWith `{server_args}`:\n\n")
        parts.append(results({key[1:]: one for key, one in ours.items() if key[0] == server_args}, all_cases=not server_args))
    parts += ["\n## Failures\n\n", failures(outcomes), "\n## Servers\n\n", servers()]
    parts += ["\n## Kits that are not run here\n\n| kit | reason |\n| --- | --- |\n", *(f"| `{k}` | {v} |\n" for k, v in KITS.items())]
    parts += ["\n## Fixtures\n\n| fixture | |\n| --- | --- |\n", *(f"| `{k}` | {v} |\n" for k, v in FIXTURES.items())]
    commands = [run["command"] for run in runs]
    parts += ["\n## Commands\n\n", *(f"    {command}\n" for command in dict.fromkeys(commands))]
    return "".join(parts)


def results(outcomes: dict[tuple, dict], all_cases: bool) -> str:
    """outcomes: by (profile, kit, test, temperature). all_cases: also the kits that were not asked, and their tests."""
    lines = ["| kit | server | T = 0 | T = 1 |\n| --- | --- | --- | --- |\n"]
    for case in CASES:
        profile, kit = case.profile, case.title
        own = [one for (p, k, *_), one in outcomes.items() if (p, k) == (profile, kit)]
        if own or all_cases:
            cells = [cell([one for one in own if one["temperature"] == t], case, t) for t in (0, 1)]
            cells[0] += "".join(f"; `{test}` not asked: {reason}" for test, reason in case.absent.items())
            lines.append(f"| `{case.kit}`{kit[len(case.kit):]} | {profile} | {cells[0]} | {cells[1]} |\n")
    return "".join(lines)


def cell(outcomes: list[dict], case: Case, temperature: float) -> str:
    if not outcomes:
        return "no meaning there" if temperature and case.warm == () else "not run"
    passed = sum(one["status"] == "passed" for one in outcomes)
    others = [f"{one['status']}: `{one['test']}`" for one in outcomes if one["status"] != "passed"]
    return "; ".join([f"{passed} of {len(outcomes)} passed", *others])


def failures(outcomes: dict[tuple, dict]) -> str:
    """Every test that did not pass under NSD, beside the same test under stock speculation and plain decoding."""
    lines = ["| test | server | T | NSD | EAGLE or STANDALONE | plain | reason |\n| --- | --- | --- | --- | --- | --- | --- |\n"]
    for (algorithm, args, profile, kit, test, temperature), one in outcomes.items():
        if algorithm == "NSD" and one["status"] != "passed":
            others = [outcomes.get((name, args, profile, kit, test, temperature)) for name in ("EAGLE", "none")]
            cells = " | ".join("not run" if other is None else other["status"] for other in others)
            name, where = f"`{kit.rpartition('.')[2]}.{test}`", profile + (f", `{args}`" if args else "")
            reason = REASONS.get(f"{kit}.{test}", one["message"].replace("|", "\\|").replace("\n", " "))
            lines.append(f"| {name} | {where} | {temperature:g} | {one['status']} | {cells} | {reason} |\n")
    return "".join(lines) if len(lines) > 1 else "None.\n"


def servers() -> str:
    models = (
        "Models: `demo` is SmolLM2-135M-Instruct and its EAGLE head, `self` the same model as its own standalone draft, `wide` tiny "
        "random models with its tokenizer and a standalone draft, `thinking` tiny random models that write think tags, and an EAGLE "
        "head. Shape: 5 steps, top-1, 6 tokens, as in SGLang's fixture, unless a command says otherwise.\n\n"
    )
    lines = [models, "| server | model | arguments | environment |\n| --- | --- | --- | --- |\n"]
    for name, profile in PROFILES.items():
        env = " ".join(f"{key}={value}" for key, value in profile.env.items())
        lines.append(f"| {name} | {profile.model} | `{' '.join(profile.args)}` | {f'`{env}`' if env else ''} |\n")
    return "".join(lines)
