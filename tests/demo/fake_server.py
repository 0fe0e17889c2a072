"""Stands in for launch_server: answers /health and leaves children that are hard to get rid of.

Arguments: PIDS_FILE MODE --host H --port P. MODE is ok, dies (exit code 3 after some log lines) or silent (never healthy).
"""

import os
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
# Starts a process in another session and leaves at once, so that nobody but a subreaper is its parent.
ORPHANER = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


def main(pids_file, mode, *rest):
    host, port = rest[rest.index("--host") + 1], int(rest[rest.index("--port") + 1])
    child = subprocess.Popen([sys.executable, "-c", SLEEPER])
    detached = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    orphan = subprocess.check_output([sys.executable, "-c", ORPHANER], text=True)
    with open(pids_file + ".new", "w") as out:
        out.write(f"{os.getpid()} {child.pid} {detached.pid} {orphan}")
    os.rename(pids_file + ".new", pids_file)
    # Left behind on purpose, as sglang leaves its sockets.
    handle, path = tempfile.mkstemp()
    with open(pids_file + ".temporary", "w") as out:
        out.write(path)
    if mode == "dies":
        print("loading the weights", "no such flag: --frobnicate", sep="\n", flush=True)
        sys.exit(3)
    if mode == "silent":
        time.sleep(600)
    HTTPServer((host, port), Health).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
