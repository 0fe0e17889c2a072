"""When the platform is there, and what happens when SGLang has moved under it."""

import dataclasses
import inspect
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


@pytest.mark.parametrize("cores, ranks, split", [
    ([0, 1, 2, 3], 2, "0,1|2,3"), ([4, 6, 7], 2, "4|6,7"), ([0, 1], 2, "0|1"), ([0, 1], 4, "0|0|1|1"), ([5], 3, "5|5|5"),
])
def test_ranks_share_the_cores(cores, ranks, split):
    from nsd_sglang.platforms.cores import cores_by_rank

    assert cores_by_rank(cores, ranks) == split


def test_every_query_that_sglang_leaves_to_a_platform_is_answered():
    """`/start_profile` asked one that was not, and ended the scheduler."""
    from sglang.srt.platforms.device_mixin import DeviceMixin
    from sglang.srt.platforms.interface import SRTPlatform

    from nsd_sglang.platforms.cpu import CpuPlatform

    left_open = {
        name
        for base in (SRTPlatform, DeviceMixin)
        for name, method in vars(base).items()
        if inspect.isfunction(method) and "raise NotImplementedError" in inspect.getsource(method)
    }
    assert "get_torch_profiler_activity_str" in left_open
    # Asked for DFLASH alone, which SGLang then refuses by name.
    left_open.discard("get_default_speculative_draft_attention_backend")
    assert {name for name in left_open if getattr(CpuPlatform, name) in (vars(SRTPlatform).get(name), vars(DeviceMixin).get(name))} == set()
    assert hasattr(torch.profiler.ProfilerActivity, CpuPlatform().get_torch_profiler_activity_str())


def test_waiting_for_a_device_of_no_name_returns(monkeypatch):
    """`/release_memory_occupation` ends with it; a CUDA build of torch takes it for the GPU that is not there."""
    from nsd_sglang.platforms.cpu import CpuPlatform

    monkeypatch.setattr(torch.cuda, "synchronize", torch.cuda.synchronize)  # restored after the test
    CpuPlatform().init_backend()
    torch.get_device_module().synchronize()
