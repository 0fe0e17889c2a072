"""When the platform is there, and what happens when SGLang has moved under it."""

import dataclasses
import logging
import sys

import pytest
import torch

from nsd_sglang import platforms
from nsd_sglang.platforms import seams
from nsd_sglang.platforms.install import Assignment, install
from nsd_sglang.seam import Seam, drift

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="the platform is for machines without one")


def test_every_symbol_is_as_the_table_says():
    assert [line for line in map(drift, seams.CPU_SEAMS) if line] == []


def test_there_without_an_accelerator(monkeypatch):
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    assert platforms.activate() == platforms.PLATFORM


def test_out_with_an_accelerator_or_the_engine_of_sglang(monkeypatch):
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert platforms.activate() is None
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert platforms.activate() is None


def test_out_with_one_line_when_a_symbol_has_moved(monkeypatch, caplog):
    moved = dataclasses.replace(seams.CPU_SEAMS[-1], signature="(something, else)")
    monkeypatch.setattr(seams, "CPU_SEAMS", [moved])
    with caplog.at_level(logging.ERROR):
        assert platforms.activate() is None
    assert len(caplog.records) == 1 and moved.target in caplog.text


def test_assignment_reaches_copies_and_names_what_is_missing(monkeypatch):
    source, importer = type(sys)("fake_source"), type(sys)("fake_importer")
    for module in (source, importer):
        module.__spec__ = type("Spec", (), {"_initializing": False})()
        monkeypatch.setitem(sys.modules, module.__name__, module)
    source.name = importer.name = None
    assignment = Assignment(Seam("fake_source:name", "name", "hook", ""), "os.path:join", ("fake_importer", "not_loaded"))
    assert install(assignment) == 1
    assert source.name is importer.name is sys.modules["os"].path.join
    del source.name
    with pytest.raises(RuntimeError, match="fake_source has no name"):
        install(assignment)
