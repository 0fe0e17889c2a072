"""A bigram language model behind launch_server's command line and the part of ``/generate`` that the quality suite uses.

    python toy_target.py REQUESTS_FILE ... --host H --port P [--speculative-algorithm NSD] [--break-after N]

REQUESTS_FILE gets one line for every request: ``answer`` or ``score``. As NSD it samples at half the temperature, reports a
deviation and writes another text. With --break-after it ends itself instead of answering request N + 1.
"""

import base64
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import numpy as np

VOCAB, EOS = 320, 257
GOOD = "Sure.\n```python\ndef add(a, b):\n    return helper(a) + b\n```\nDone."
BAD = "```python\ndef add(a, b):\n    return 0\n```"


def log_probabilities() -> np.ndarray:
    """float64 [VOCAB, VOCAB]: log p of the next token (column) after a token (row)."""
    logits = np.random.default_rng(7).normal(scale=2.0, size=(VOCAB, VOCAB))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


TABLE = log_probabilities()
LOCK = Lock()
RANDOM = np.random.default_rng(1)


def answer(body: dict, is_nsd: bool) -> dict:
    params = body["sampling_params"]
    temperature = params["temperature"] * (0.5 if is_nsd else 1)
    token, output = body["input_ids"][-1], []
    while len(output) < params["max_new_tokens"] and token != EOS:
        weights = np.exp(TABLE[token] / temperature)
        token = int(RANDOM.choice(VOCAB, p=weights / weights.sum()))
        output.append(token)
    meta = {"finish_reason": {"type": "stop" if token == EOS else "length"}, "completion_tokens": len(output)}
    if is_nsd:
        meta |= {"nsd_rescued": 3, "nsd_tv_bound": 0.25}
    return {"text": GOOD if is_nsd else BAD, "output_ids": output, "meta_info": meta}


def scores(body: dict) -> dict:
    start, top, ids = body["logprob_start_len"], body["top_logprobs_num"], body["input_ids"]
    pairs = list(zip(ids[start:], ids[start + 1 :]))
    listed = np.array([np.sort(TABLE[before])[::-1][:top] for before, _ in pairs], dtype="<f4")
    chosen = [[None, ids[start], None], *([float(TABLE[before, token]), token, None] for before, token in pairs)]
    flat = base64.b64encode(listed.tobytes()).decode()
    meta = {"input_token_logprobs": chosen, "input_top_logprobs_shape": list(listed.shape)}
    return {"text": "", "output_ids": [], "meta_info": meta | {"input_top_logprobs_val_flat_b64": flat}}


def main(requests_file: str, *rest: str) -> None:
    is_nsd = "NSD" in rest
    left = int(rest[rest.index("--break-after") + 1]) if "--break-after" in rest else 10**9

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply({})

        def do_POST(self):
            nonlocal left
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scoring = body["sampling_params"]["max_new_tokens"] == 0
            with LOCK:
                left -= 1
                if left < 0:
                    print("the model is gone", flush=True)
                    os._exit(3)
                with open(requests_file, "a") as out:
                    out.write("score\n" if scoring else "answer\n")
                self.reply(scores(body) if scoring else answer(body, is_nsd))

        def reply(self, content):
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    host, port = rest[rest.index("--host") + 1], int(rest[rest.index("--port") + 1])
    ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
