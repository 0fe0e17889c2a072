"""Stands in for bench_client: answers every command with a recorded result, cut or repeated to the number of prompts.

    fake_client.py NOTES RECORDED SOCKET

Appends its process id and the arguments of every run to NOTES; run number FAKE_STALLS (from 1, in this process) never ends.
"""

import json
import os
import socket
import sys
import time

notes, recorded, address = sys.argv[1:]
stalls = int(os.environ.get("FAKE_STALLS", "0"))
connection = socket.socket(socket.AF_UNIX)
connection.connect(address)
for count, line in enumerate(connection.makefile(), 1):
    arguments = json.loads(line)["arguments"]
    with open(notes, "a") as out:
        out.write(json.dumps({"pids": [os.getpid()], "run": arguments}) + "\n")
    if count == stalls:
        time.sleep(600)
    raw = json.loads(open(recorded).read())
    number = int(arguments[arguments.index("--num-prompts") + 1])
    for name in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"):
        raw[name] = (raw[name] * number)[:number]
    raw["completed"], raw["total_output_tokens"] = number, sum(raw["output_lens"])
    with open(arguments[arguments.index("--output-file") + 1], "a") as out:
        out.write(json.dumps(raw) + "\n")
    connection.sendall(b"0\n")
