"""Runs ``python -m sglang.bench_serving ARGUMENTS`` again and again without importing SGLang again and again.

``python bench_client.py SOCKET`` imports what bench_serving imports, connects to SOCKET and then forks once for every command
it is sent, so that each run starts from the same fresh state as a process of its own would. Importing takes ten seconds on a
small machine, more than many a timed unit.

A command is a line ``{"arguments": [...], "log": PATH}``; the answer is a line with the run's exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback


def main(address: str) -> int:
    # The module behind sglang.bench_serving, whose own import warns of its age on standard error.
    import sglang.benchmark.serving  # noqa: F401

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        for line in connection.makefile("r", encoding="utf-8"):
            command = json.loads(line)
            child = os.fork()
            if child == 0:
                _run(command["arguments"], command["log"])
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return 0


def _run(arguments: list[str], log: str) -> None:
    """In the forked process: what ``python -m sglang.bench_serving`` does, with its output in ``log``. Does not return."""
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["sglang.bench_serving", *arguments]
        runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
