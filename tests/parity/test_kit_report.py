"""Every kit and fixture of the installed SGLang has its place, and the page says what was recorded."""

import ast
import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from kit_absent import FIXTURES, KITS
from kit_cases import CASES, SUITE
from kit_report import load, page
from kit_runner import Outcome

SHIPPED = Path(find_spec("sglang").submodule_search_locations[0]) / "test"


def classes(folder, with_tests):
    """module.Class of the folder's files, and the modules that define none of them."""
    found = set()
    for path in sorted((SHIPPED / folder).iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            found.add(path.name)
        if path.suffix != ".py" or path.stem == "__init__":
            continue
        names = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        names = [node.name for node in names if not with_tests or any(is_test(entry) for entry in node.body)]
        found |= {f"{path.stem}.{name}" for name in names} or {path.stem}
    return found


def is_test(node):
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def test_every_kit_is_run_or_has_a_reason():
    run = {case.kit for case in (*CASES, *SUITE)}
    assert not run & KITS.keys()
    assert run | KITS.keys() == classes("kits", with_tests=True)


def test_every_fixture_is_named():
    assert FIXTURES.keys() == classes("server_fixtures", with_tests=False)


@pytest.fixture
def recorded(tmp_path):
    kit = "spec_server_kits.SpecPenaltyKit"

    def record(algorithm, status):
        outcome = Outcome(kit, "wide", "test_penalty_mixed", 1.0, status, 0.1, "what was wrong" if status == "failed" else "")
        path = tmp_path / f"{algorithm}-{status}.json"
        run = {"command": f"ask {algorithm}", "algorithm": algorithm, "server_args": "", "outcomes": [asdict(outcome)]}
        path.write_text(json.dumps(run))
        return path

    return record


def test_the_page_names_results_failures_and_commands(recorded):
    text = page(load([recorded("NSD", "failed"), recorded("none", "passed")]))
    assert "| `spec_server_kits.SpecPenaltyKit` | wide | not run | 0 of 1 passed; failed: `test_penalty_mixed` |" in text
    assert "| `SpecPenaltyKit.test_penalty_mixed` | wide | 1 | failed | not run | passed | what was wrong |" in text
    assert "    ask NSD\n    ask none\n" in text


def test_a_later_run_replaces_an_earlier_one(recorded):
    text = page(load([recorded("NSD", "failed"), recorded("NSD", "passed")]))
    assert "| wide | not run | 1 of 1 passed |" in text and "## Failures\n\nNone.\n" in text
