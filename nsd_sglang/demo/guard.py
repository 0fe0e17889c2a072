"""Run one command and see to it that nothing of it survives: ``python guard.py COMMAND...``

The command and everything it starts, also in sessions of its own, is killed as soon as the guard's standard input closes,
which is what happens when the process that started the guard ends for any reason, SIGKILL included. The guard ends with the
command's exit code (128 + N after signal N). The command's temporary files go into a directory that is removed at the end.

It imports nothing of nsd_sglang, so it is a small process that starts at once. Linux: it makes itself the parent of orphaned
descendants (PR_SET_CHILD_SUBREAPER) so that none escapes, and the command dies with it should it be killed itself
(PR_SET_PDEATHSIG). Elsewhere it kills the descendants that it can still see.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
SWEEP_S = 10.0

_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_descendants() -> None:
    """Kill until none is left: a process can start another between the listing and the signal."""
    deadline = time.monotonic() + SWEEP_S
    while (alive := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        # Adopted orphans are this process's to wait for.
        psutil.wait_procs(alive, timeout=1.0)


def main(command: list[str]) -> int:
    # The terminal's Ctrl-C is for the starter; this process leaves when its input closes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if _prctl is not None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    scratch = tempfile.mkdtemp(prefix="nsd-sglang-")
    env = os.environ | {"TMPDIR": scratch}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, start_new_session=True, preexec_fn=_prepare_child)
    try:
        while server.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
    finally:
        _kill_descendants()
        shutil.rmtree(scratch, ignore_errors=True)
    code = server.wait()
    return code if code >= 0 else 128 - code


def _prepare_child() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
