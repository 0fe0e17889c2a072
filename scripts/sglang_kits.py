"""Runs the server kits that SGLang ships in its wheel (`sglang.test.kits`) against NSD on this machine.

    .venv/bin/python scripts/sglang_kits.py                        # every kit, temperature 0 and 1
    .venv/bin/python scripts/sglang_kits.py --kits Logprob,Stop    # those whose name contains one of these
    .venv/bin/python scripts/sglang_kits.py --algorithm EAGLE      # stock speculation: is a failure NSD's or not?
    .venv/bin/python scripts/sglang_kits.py --algorithm none       # plain decoding
    .venv/bin/python scripts/sglang_kits.py --markdown docs/kits.md RECORDED.json ...

The kits and what they are asked with stand in tests/parity/kit_cases.py, the results of a run in docs/kits.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "parity"), str(TESTS)]

import kit_report  # noqa: E402
from kit_cases import CASES, PROFILES, Case  # noqa: E402
from kit_models import write_thinking_models, write_wide_models  # noqa: E402
from kit_proxy import proxy  # noqa: E402
from kit_runner import Outcome, kit_class, run, names_of  # noqa: E402
from serving import serve  # noqa: E402

ALGORITHMS = ("NSD", "EAGLE", "none")
DEMO_VOCAB = 49152


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kits", help="comma-separated parts of kit names; all without it")
    parser.add_argument("--tests", help="comma-separated parts of test names; all without it")
    parser.add_argument("--profile", choices=PROFILES, help="only the kits of this server (tests/parity/kit_cases.py)")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="NSD")
    parser.add_argument("--temperature", type=float, choices=(0.0, 1.0), action="append", help="0 and 1 without it")
    parser.add_argument("--shape", default="5,1,6", help="steps, top-k, draft tokens (default: %(default)s, of SGLang's fixture)")
    parser.add_argument("--server-args", default="", help="more arguments for every server, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcomes there")
    parser.add_argument("--markdown", nargs="+", type=Path, metavar="FILE", help="ask nothing: write a page to the first FILE, from "
                        "what --json wrote to the others")
    parser.add_argument("--log", type=Path, default=Path("sglang-kits.log"), help="tracebacks and server logs (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server goes too; unittest would swallow an exit
    options = arguments()
    if options.markdown:
        options.markdown[0].write_text(kit_report.page(kit_report.load(options.markdown[1:])))
        return 0
    options.log = options.log.resolve()
    options.log.unlink(missing_ok=True)
    wanted = [case for case in CASES if _matches(case.title, options.kits) and options.profile in (None, case.profile)]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="sglang-kits-") as folder:
        order = sorted(wanted, key=lambda case: list(PROFILES).index(case.profile))
        for name, cases in itertools.groupby(order, key=lambda case: case.profile):
            run_profile(name, list(cases), options, Path(folder), outcomes)
    failed = sum(one.status == "failed" for one in outcomes)
    print(f"{len(outcomes)} tests, {failed} failed" + (f"; tracebacks: {options.log}" if failed else ""))
    return int(failed > 0)


def record(outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """After every test, so that a run that is stopped keeps what it has."""
    if options.json:
        asked = iter(sys.argv[1:])
        kept = [word for word in asked if word not in ("--json", "--log") or not next(asked)]
        command = shlex.join([".venv/bin/python", "scripts/sglang_kits.py", *kept])
        run = {"command": command, "algorithm": options.algorithm, "server_args": options.server_args}
        options.json.write_text(json.dumps(run | {"outcomes": [asdict(one) for one in outcomes]}, indent=1))


def run_profile(name: str, cases: list[Case], options: argparse.Namespace, folder: Path, outcomes: list[Outcome]) -> None:
    """Starts the server of a profile and adds to `outcomes`."""
    profile = PROFILES[name]
    target, drafts = prepare(profile.model, folder)
    args = [*profile.args, *speculation(options.algorithm, options.shape, drafts), *options.server_args.split()]
    log = folder / f"{name}.log"
    attributes = {}
    if any(case.kit.endswith("SpecParityKit") for case in cases):
        attributes["parity_ref_outputs"] = plain_answers(target, profile.args, folder)
    with serve(target, "--dtype", "float32", *args, log=log, env=profile.env, timeout=600) as server:
        for temperature in options.temperature or (0.0, 1.0):
            with address(server.url, temperature) as url:
                for case in cases:
                    cls = kit_class(case, server, url, target, **attributes)
                    names = [test for test in names_of(cls, case, temperature) if _matches(test, options.tests)]
                    for test in names:
                        for outcome in run(case, cls, temperature, [test], options.log):
                            outcomes.append(outcome)
                            record(outcomes, options)
                            line = f"{outcome.status:8} {name:9} T={temperature:g} {case.kit.rpartition('.')[2]}.{outcome.test}"
                            print(f"{line} ({outcome.seconds:.1f} s) {outcome.message}", flush=True)
                    if server.process.poll() is not None:
                        print(f"the server has ended\n{server.tail(30)}")
                        return
    with open(options.log, "a") as file:
        file.write(f"==== server {name}\n{log.read_text(errors='replace')}\n")


def address(url: str, temperature: float):
    return proxy(url, temperature) if temperature else contextlib.nullcontext(url)


def speculation(algorithm: str, shape: str, drafts: dict[str, str]) -> list[str]:
    """Server arguments. A draft that is no EAGLE head goes to STANDALONE, EAGLE's counterpart for it."""
    if algorithm == "none":
        return []
    kind, path = next(iter(drafts.items()))
    steps, topk, tokens = shape.split(",")
    name = "STANDALONE" if algorithm == "EAGLE" and kind == "standalone" else algorithm
    tree = ("--speculative-num-steps", steps, "--speculative-eagle-topk", topk, "--speculative-num-draft-tokens", tokens)
    return ["--speculative-algorithm", name, "--speculative-draft-model-path", path, *tree]


def plain_answers(target: str, args: tuple[str, ...], folder: Path) -> dict[str, str]:
    """The parity kit's reference, as the kit makes it: greedy answers of a server without speculation."""
    from sglang.test.kits.spec_server_kits import SpecParityKit, _greedy

    with serve(target, "--dtype", "float32", *args, log=folder / "plain.log", timeout=600) as server:
        return {prompt: _greedy(server.url, prompt) for prompt in SpecParityKit.parity_prompts}


def prepare(model: str, folder: Path) -> tuple[str, dict[str, str]]:
    """The target, and its draft by kind."""
    from nsd_sglang.demo.cache import default_cache_dir
    from nsd_sglang.demo.model import prepare_head, prepare_target

    if model == "thinking":
        if not (folder / model).exists():
            write_thinking_models(folder / model, 0.5)
        return str(folder / model / "target"), {"eagle": str(folder / model / "eagle")}
    demo = prepare_target(default_cache_dir())
    if model == "wide":
        if not (folder / model).exists():
            write_wide_models(folder / model, demo, DEMO_VOCAB)
        return str(folder / model / "target"), {"standalone": str(folder / model / "standalone")}
    if model == "self":
        return str(demo), {"standalone": str(demo) + "/."}
    return str(demo), {"eagle": str(prepare_head(default_cache_dir(), demo, "eagle"))}


def _matches(name: str, parts: str | None) -> bool:
    return parts is None or any(part.strip().lower() in name.lower() for part in parts.split(","))


if __name__ == "__main__":
    sys.exit(main())
