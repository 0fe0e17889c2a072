"""NSD under each of SGLang's serving modes: the same greedy answers as plain decoding, no KV slot lost, a healthy server.

    .venv/bin/python scripts/serving_checks.py                  # every mode, one server each
    .venv/bin/python scripts/serving_checks.py --only 'page size,two ranks'
    .venv/bin/python scripts/serving_checks.py --list

Tiny random models in float32. For every mode: greedy answers one at a time, all at once, and from an empty cache equal
those of a plain server; requests of many lengths, greedy beside sampled, finish in waves with the greedy ones still equal;
prompts at and past the context limit end as in plain decoding; a short soak (scripts/soak.py); and a proof, from the
server's own words, that the mode did happen. Prints one row a mode; exit code 1 when any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from serving import serve
from serving_modes import CONTEXT, MODES, SHORT_CONTEXT, Mode
from soak import STRICT, Soak, limits_of, log_errors
from tiny_models import EOS, TinyModels, write_tiny_models

NEW_TOKENS = 48

_dice = random.Random(5)
PROMPTS = [[_dice.randrange(256) for _ in range(length)] for length in (1, 2, 9, 17, 33, 64, 130, 257)]
PROMPTS += [PROMPTS[6][:100] + PROMPTS[2], PROMPTS[6][:100] + PROMPTS[3]]  # a prefix of three
# Lengths around the context limit, and past it.
LIMIT_LENGTHS = (CONTEXT - 60, CONTEXT - 9, CONTEXT - 3, CONTEXT - 2, CONTEXT - 1, CONTEXT, CONTEXT + 40)


def greedy(prompt: list[int], new_tokens: int = NEW_TOKENS) -> dict:
    return {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}}


def limit_prompt(length: int) -> list[int]:
    return [(7 * i + 2) % 250 for i in range(length)]


def ending(server: Any, body: dict) -> tuple:
    """How a request ends, in terms that do not depend on speculation."""
    response = server.post("/generate", **body)
    if response.status_code != 200:
        return (response.status_code,)
    answer = response.json()
    return (200, answer["meta_info"]["finish_reason"], answer["output_ids"])


def reference(server: Any) -> dict[str, Any]:
    """What a plain server says."""
    answers = [server.generate(**greedy(prompt))["output_ids"] for prompt in PROMPTS]
    limits = [ending(server, greedy(limit_prompt(length))) for length in LIMIT_LENGTHS]
    return {"answers": answers, "limits": limits, "logprobs": logprobs(server)}


def logprobs(server: Any) -> list[float]:
    """Log-probabilities of a greedy answer's tokens."""
    answer = server.generate(**greedy(PROMPTS[4]), return_logprob=True)
    return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


def check_greedy(server: Any, plain: dict[str, Any]) -> None:
    bodies = [greedy(prompt) for prompt in PROMPTS]
    serial = [server.generate(**body) for body in bodies]
    assert [answer["output_ids"] for answer in serial] == plain["answers"], "one at a time"
    assert [answer["output_ids"] for answer in server.generate_all(bodies, 16)] == plain["answers"], "all at once"
    server.flush_cache()
    assert [answer["output_ids"] for answer in server.generate_all(bodies, 16)] == plain["answers"], "from an empty cache"


def check_waves(server: Any, plain: dict[str, Any], count: int = 48) -> list[dict]:
    """Requests of many lengths in one stream: batches shrink and grow at almost every step. Without ignore_eos, for which
    SGLang plans so exactly that it never has to retract."""
    dice = random.Random(3)
    bodies, wanted = [], []
    for i in range(count):
        which, length = dice.randrange(len(PROMPTS)), dice.choice([1, 2, 3, 7, 20, NEW_TOKENS, NEW_TOKENS])
        body = greedy(PROMPTS[which], length)
        body["sampling_params"] |= {"ignore_eos": False, "temperature": i % 3 // 2}
        bodies.append(body)
        wanted.append(None if i % 3 == 2 else through_eos(plain["answers"][which][:length]))
    answers = server.generate_all(bodies, 16)
    for want, answer in zip(wanted, answers):
        ids = answer["output_ids"]
        assert want is None or ids == want, (ids, want)
        assert ids == through_eos(ids) and answer["meta_info"]["finish_reason"]["type"] == ("stop" if EOS in ids else "length")
    return answers


def through_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def check_limits(server: Any, plain: dict[str, Any]) -> None:
    for length, want in zip(LIMIT_LENGTHS, plain["limits"]):
        got = ending(server, greedy(limit_prompt(length)))
        assert got == want, f"prompt of {length} tokens: {got}, plain decoding {want}"


def check_reported(server: Any, plain: dict[str, Any], cached: bool, page: int) -> None:
    """Faults that were reported of speculative decoding elsewhere; the addresses stand in docs/serving.md."""
    got = logprobs(server)
    assert len(got) == NEW_TOKENS and max(abs(a - b) for a, b in zip(got, plain["logprobs"])) < 1e-3, "log-probabilities"
    sampling = {"temperature": 1, "max_new_tokens": 16, "ignore_eos": True}
    answers = {tuple(server.generate(input_ids=PROMPTS[3], sampling_params=sampling)["output_ids"]) for _ in range(6)}
    assert len(answers) == 6, "unseeded answers repeat each other"
    if cached:  # every turn finds the turns before it, but for the last tokens and what a page cuts off
        prompt = list(PROMPTS[5])
        for turn in range(4):
            answer = server.generate(**greedy(prompt, 20))
            assert not turn or answer["meta_info"]["cached_tokens"] >= len(prompt) - 4 - 2 - page, (len(prompt), answer["meta_info"])
            prompt += answer["output_ids"] + [turn, turn, turn]


def check_mode(server: Any, mode: Mode, plain: dict[str, Any], soak_requests: int) -> list[str]:
    """What is wrong under a mode, one line each."""
    wrong = []
    answers: list[dict] = []

    def attempt(name: str, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error!s:.400}")

    attempt("greedy", lambda: check_greedy(server, plain))
    answers = attempt("waves", lambda: check_waves(server, plain)) or []
    if not any(option == "--max-total-tokens" for option in mode.args):
        attempt("limits", lambda: check_limits(server, plain))
    cached = "--disable-radix-cache" not in mode.args and "--dp" not in mode.args
    page = 16 if "--page-size" in mode.args else 1
    attempt("reported faults", lambda: check_reported(server, plain, cached, page))
    if mode.proof is not None:
        attempt("proof", lambda: mode.proof(server, answers))
    if soak_requests:
        soak = attempt("soak", lambda: Soak(server.url, limits_of(server.url), 2))
        if soak is not None:
            attempt("soak", lambda: soak.run(soak_requests, 16))
            soak.finish()
            wrong += soak.failures
    return wrong + [f"log: {line}" for line in log_errors(server.log)]


def with_short_drafts(models: TinyModels, folder: Path) -> dict[str, str]:
    """Paths of the drafts by name, two more among them whose configuration says `SHORT_CONTEXT` positions."""
    paths = {"eagle": models.eagle, "eagle3": models.eagle3, "standalone": models.standalone}
    for name in ("eagle", "standalone"):
        short = folder / f"short-{name}"
        shutil.copytree(paths[name], short)
        config = json.loads((short / "config.json").read_text())
        (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": SHORT_CONTEXT}))
        paths[f"short {name}"] = str(short)
    return paths


@contextlib.contextmanager
def mode_server(models: TinyModels, drafts: dict[str, str], mode: Mode, log: Path):
    nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", "0.9", "--nsd-max-threshold", "1")
    nsd += ("--speculative-draft-model-path", drafts[mode.draft], *mode.shape, "--max-running-requests", "16")
    with serve(models.target, "--dtype", "float32", *nsd, *mode.args, log=log, env=STRICT | mode.env, timeout=600) as server:
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", help="names of modes, or parts of them, comma-separated")
    parser.add_argument("--list", action="store_true", help="print the modes and end")
    parser.add_argument("--soak-requests", type=int, default=60, help="requests of each mode's soak (default 60)")
    args = parser.parse_args()
    parts = [part.strip() for part in args.only.split(",")] if args.only else [""]
    chosen = {name: mode for name, mode in MODES.items() if any(part in name for part in parts)}
    if args.list or not chosen:
        print("\n".join(MODES))
        return 0 if args.list else 2
    failed = 0
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        models = write_tiny_models(Path(folder) / "models")
        drafts = with_short_drafts(models, Path(folder))
        with serve(models.target, "--dtype", "float32", log=Path(folder) / "plain.log") as server:
            plain = reference(server)
        for name, mode in chosen.items():
            started = time.monotonic()
            log = Path(folder) / f"{name.replace(' ', '-').replace(',', '')}.log"
            try:
                with mode_server(models, drafts, mode, log) as server:
                    wrong = check_mode(server, mode, plain, args.soak_requests)
            except AssertionError as error:
                wrong = [f"server: {error!s:.2000}"]
            failed += bool(wrong)
            print(f"| {name} | {'passed' if not wrong else 'FAILED'} | {time.monotonic() - started:.0f} s |", flush=True)
            for line in wrong[:12]:
                print("    " + line, flush=True)
            if wrong:
                print("    ..." + log.read_text(errors="replace")[-1500:].replace("\n", "\n    "), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
