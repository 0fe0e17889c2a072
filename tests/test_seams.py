"""The table of touched SGLang symbols, and what happens when one of them moves."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nsd_sglang import check, plugin, seams
from nsd_sglang.seam import Seam, drift, read_signature

SOURCE = '''
import os
if os.name == "posix":
    from json import dumps as spelled
else:
    spelled = None

def plain(a, b=1, /, c=2, *rest, d, e=3, **more): ...
def keyword_only(*, x: int, y: str = "") -> None: ...

class Thing:
    width: int = 3
    def __init__(self, size): ...
    @staticmethod
    def make(parser): ...

class Bare:
    pass
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "movable"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    from nsd_sglang import seam

    seam._parse.cache_clear()
    return folder


@pytest.mark.parametrize(
    "name, signature",
    [
        ("plain", "(a, b=, /, c=, *rest, d, e=, **more)"),
        ("keyword_only", "(*, x, y=)"),
        ("Thing", "class(self, size)"),
        ("Thing.make", "(parser)"),
        ("Thing.width", "name"),
        ("Bare", "class"),
        ("spelled", "name"),
        ("absent", None),
        ("Thing.absent", None),
    ],
)
def test_signatures_are_read_without_importing(package, name, signature):
    assert read_signature(f"movable.part:{name}") == signature
    assert "movable" not in sys.modules


def test_drift_names_the_symbol_and_both_signatures(package):
    assert drift(Seam("movable.part:Thing.make", "(parser)", "hook", "")) is None
    moved = drift(Seam("movable.part:Thing.make", "(parser, more=)", "hook", ""))
    assert moved == "movable.part:Thing.make is now (parser), expected (parser, more=)"
    assert drift(Seam("movable.gone:f", "()", "call", "")) == "movable.gone:f is gone"


def test_the_installed_sglang_has_every_symbol():
    assert [drift(seam) for seam in seams.table() if drift(seam)] == []
    assert seams.first_drift() is None


def test_check_prints_every_row_and_succeeds(capsys):
    assert check.run() == 0
    printed = capsys.readouterr().out
    for seam in seams.table():
        assert seam.target in printed
    assert printed.splitlines()[-1] == f"{len(seams.table())} symbols, none changed: NSD registers"


def test_check_fails_on_a_changed_symbol(monkeypatch, capsys):
    changed = Seam("sglang.srt.speculative.eagle_utils:eagle_sample", "(other)", "read", "why")
    monkeypatch.setattr(seams, "table", lambda: [changed])
    assert check.run() == 1
    assert "CHANGED" in capsys.readouterr().out


def test_every_assigned_name_is_in_the_table():
    """A patch that assigns a name the table does not list would escape the check."""
    listed = {seam.target for seam in seams.NSD_SEAMS}
    worker = "sglang.srt.speculative.eagle_worker_v2:"
    assert {worker + n for n in ("renorm_draft_probs", "fast_sample", "sample_draft_proposal", "build_eagle_verify_input")} <= listed


def test_another_version_is_refused_by_name(monkeypatch, caplog):
    monkeypatch.setattr(seams, "installed_version", lambda: "0.5.24")
    monkeypatch.setattr(sys, "argv", ["launch", "--model-path", "m"])
    plugin.load()
    assert "NSD is not registered: sglang 0.5.24 is installed. Supported: sglang 0.5.23" in caplog.text


@pytest.mark.parametrize(
    "words", [["--speculative-algorithm", "NSD"], ["--speculative-algorithm=nsd"], ["--speculative-algo", "nsd"]]
)
def test_a_command_line_that_needs_nsd_ends_with_one_line(monkeypatch, capsys, words):
    monkeypatch.setattr(seams, "installed_version", lambda: "0.5.24")
    monkeypatch.setattr(sys, "argv", ["launch", *words])
    with pytest.raises(SystemExit) as stop:
        plugin.load()
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "0.5.24" in lines[0] and "Supported: sglang 0.5.23" in lines[0]


def test_sglang_works_on_when_a_symbol_moved(tmp_path):
    """A symbol that moved leaves SGLang's own argument parsing as it was, and says so in one line."""
    script = textwrap.dedent(
        """
        import logging, sys
        logging.basicConfig(level=logging.WARNING)
        from nsd_sglang import seams
        from nsd_sglang.seam import Seam
        seams.NSD_SEAMS.insert(0, Seam("sglang.srt.speculative.eagle_utils:eagle_sample", "(moved)", "read", ""))
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args
        load_plugins()
        args = prepare_server_args(["--model-path", "m", "--speculative-algorithm", "EAGLE"])
        print("parsed", args.speculative_algorithm)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env={**os.environ}, timeout=300
    )
    assert "parsed EAGLE" in done.stdout, done.stderr
    lines = [line for line in done.stderr.splitlines() if "NSD is not registered" in line]
    assert len(lines) == 1 and "eagle_utils:eagle_sample is now" in lines[0]


def test_the_pypi_package_kernels_is_not_shadowed_from_the_checkout():
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", "import kernels, nsd_sglang.kernels.types; print(kernels.__file__)"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "site-packages" in done.stdout, done.stdout + done.stderr
