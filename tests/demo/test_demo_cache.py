"""Cached directories are complete or absent, and are built once."""

import threading

import pytest

from nsd_sglang.demo import model
from nsd_sglang.demo.cache import building, default_cache_dir


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def build(final, marker, text):
    with building(final, marker) as partial:
        if partial is None:
            return False
        (partial / "weights").write_text(text)
        return True


def test_built_once_per_marker(tmp_path):
    assert build(tmp_path / "m", {"v": 1}, "one")
    assert not build(tmp_path / "m", {"v": 1}, "again")
    assert (tmp_path / "m" / "weights").read_text() == "one"
    assert build(tmp_path / "m", {"v": 2}, "two")
    assert (tmp_path / "m" / "weights").read_text() == "two"
    assert entries(tmp_path) == ["m"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_build_leaves_nothing_and_is_repeated(tmp_path, error):
    with pytest.raises(error):
        with building(tmp_path / "m", {"v": 1}) as partial:
            (partial / "weights").write_text("half")
            raise error
    assert entries(tmp_path) == []
    assert build(tmp_path / "m", {"v": 1}, "whole")


def test_an_interrupted_rebuild_keeps_what_was_there(tmp_path):
    build(tmp_path / "m", {"v": 1}, "one")
    with pytest.raises(KeyboardInterrupt):
        with building(tmp_path / "m", {"v": 2}):
            raise KeyboardInterrupt
    assert (tmp_path / "m" / "weights").read_text() == "one"


def test_a_killed_build_is_swept_by_the_next(tmp_path):
    (tmp_path / ".m.partial-left").mkdir()
    (tmp_path / "m").mkdir()
    assert build(tmp_path / "m", {"v": 1}, "one")
    assert entries(tmp_path) == ["m"]


def test_concurrent_builders_build_once(tmp_path):
    inside, built = threading.Event(), []

    def slow():
        with building(tmp_path / "m", {"v": 1}) as partial:
            inside.set()
            # Long enough for the second builder to meet the lock.
            threading.Event().wait(0.3)
            built.append(partial)

    first = threading.Thread(target=slow)
    first.start()
    inside.wait(5)
    assert not build(tmp_path / "m", {"v": 1}, "second")
    first.join()
    assert built != [None]


def test_cache_follows_the_xdg_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "nsd-sglang"


@pytest.mark.parametrize("drafter", [path.name.rpartition("-")[2] for path in sorted(model.HEADS.iterdir())])
def test_the_draft_gets_the_targets_tokenizer_and_stays_untouched(tmp_path, drafter):
    bundled = model.HEADS / f"{model.NAME}-{drafter}"
    target = tmp_path / "target"
    target.mkdir()
    for name in model.TOKENIZER_FILES:
        (target / name).write_text(f"the target's {name}")
    before = [model._fingerprint(path) for path in sorted(bundled.iterdir())]
    head = model.prepare_head(tmp_path, target, drafter)
    assert (head / "model.safetensors").read_bytes() == (bundled / "model.safetensors").read_bytes()
    assert all((head / name).read_text() == f"the target's {name}" for name in model.TOKENIZER_FILES)
    assert [model._fingerprint(path) for path in sorted(bundled.iterdir())] == before
    # Another tokenizer beside the target, of the same length, makes another directory.
    (target / "tokenizer.json").write_text("the target's tokenizer.JSON")
    assert (model.prepare_head(tmp_path, target, drafter) / "tokenizer.json").read_text().endswith("JSON")
