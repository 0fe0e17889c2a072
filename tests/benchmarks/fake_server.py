"""Stands in for launch_server: /health, /metrics and /generate, and a child in another session that is hard to get rid of.

    fake_server.py NOTES [launch_server's arguments] --host H --port P

Appends a line of process ids and arguments to NOTES. The environment's FAKE_DIES names an argument: a server that has it ends
while it starts ("start:WORD") or at its first warm-up ("load:WORD").
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
when, _, word = os.environ.get("FAKE_DIES", "").partition(":")
dies = when if word in sys.argv else None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b'sglang:cuda_graph_passes_total{mode="decode_none"} 4\n' if self.path.startswith("/metrics") else b"ok")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if dies == "load":
            print("out of memory, says the kernel", flush=True)
            os._exit(9)
        self.answer(b"{}")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    notes, *rest = sys.argv[1:]
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    with open(notes, "a") as out:
        out.write(json.dumps({"pids": [os.getpid(), child.pid], "arguments": rest}) + "\n")
    if dies == "start":
        print("no such flag: --frobnicate", flush=True)
        sys.exit(3)
    ThreadingHTTPServer((rest[rest.index("--host") + 1], int(rest[rest.index("--port") + 1])), Handler).serve_forever()
