"""``nsd-sglang demo``: plain decoding, stock speculation and NSD on one small real model, one server after the other."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from nsd_sglang.console import number, one_line_errors, signals_as_exit, tree_problem, writable
from nsd_sglang.demo.cache import DemoError, default_cache_dir
from nsd_sglang.demo.model import DRAFTERS
from nsd_sglang.options import PROPOSALS

# HumanEval's size, known without loading it.
NUM_PROBLEMS = 164
WARM_UP_PROMPTS = 2
SHOWN_ANSWERS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to ``parser``; every bad value is refused while parsing or by :func:`run`, before any work."""
    one_line_errors(parser)
    most = NUM_PROBLEMS - WARM_UP_PROMPTS
    option = parser.add_argument

    def choice(name: str, accepted: tuple[str, ...], default: str, help_text: str) -> None:
        option(name, choices=accepted, default=default, help=f"{help_text} (default {default})")

    option("--json", type=Path, metavar="FILE", help="also write all figures, answers and commands to FILE")
    option("--num-prompts", type=number(int, 1, most), default=32, metavar="N", help=f"timed prompts, 1 to {most} (default 32)")
    option("--concurrency", type=number(int, 1, 64), default=1, metavar="C", help="requests at a time, 1 to 64 (default 1)")
    option("--max-new-tokens", type=number(int, 2, 1024), default=64, metavar="T", help="tokens per answer, 2 to 1024 (default 64)")
    option("--threshold", type=number(float, 0, 1), default=0.95, help="NSD's nucleus threshold, 0 to 1 (default 0.95)")
    option("--temperature", type=number(float, 0, 2), default=1.0, help="sampling temperature, 0 to 2 (default 1)")
    option("--seed", type=number(int, 0, 2**31 - 1), default=0, help="the servers' random seed (default 0)")
    option("--num-steps", type=number(int, 1, 8), default=4, help="depth of the draft tree, 1 to 8 (default 4)")
    option("--eagle-topk", type=number(int, 1, 8), default=3, help="children per node of the draft tree, 1 to 8 (default 3)")
    option("--num-draft-tokens", type=number(int, 2, 64), default=12, help="nodes of the draft tree, 2 to 64 (default 12)")
    choice("--drafter", DRAFTERS, "eagle", "the bundled draft of both speculating servers")
    choice("--proposals", PROPOSALS, "topk", "how NSD's draft proposes; stock speculation proposes its top-k")
    option("--candidates", type=number(int, 1, 1024), default=64, help="tokens a sampled proposal is drawn from (default 64)")
    option("--cache-dir", type=Path, default=None, help=f"model, prompts and logs (default {default_cache_dir()})")


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns the exit code: 0, 1 after a failure, 2 for a bad option, 130 or 143 after Ctrl-C or SIGTERM."""
    problem = _check(args)
    if problem:
        return _fail(problem, 2)
    try:
        with signals_as_exit():
            return _run(args)
    except (DemoError, OSError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted; every server it started is gone", 130)


def _run(args: argparse.Namespace) -> int:
    # Imported here: `nsd-sglang --help` and a refused option need none of it.
    from transformers import AutoTokenizer

    from nsd_sglang.demo import model, prompts, report
    from nsd_sglang.demo.measure import measure
    from nsd_sglang.demo.server import Server

    cache = (args.cache_dir or default_cache_dir()).resolve()
    target = model.prepare_target(cache)
    head = model.prepare_head(cache, target, args.drafter)
    problems = prompts.load_problems(prompts.prepare_problems(cache))
    requests = prompts.chat_prompts(problems, AutoTokenizer.from_pretrained(target))
    # The timed prompts are the first ones, the warm-up ones the last, so no arm finds a timed prompt in its cache.
    timed, warm_up = requests[: args.num_prompts], requests[-WARM_UP_PROMPTS:]
    sampling = {"temperature": args.temperature, "max_new_tokens": args.max_new_tokens}

    logs = cache / "logs" / time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}")
    measured = []
    for name, arguments in server_arguments(args, target, head).items():
        log = logs / f"{name.split()[0].lower()}.log"
        with Server(name, arguments, log) as server:
            measured.append(measure(server, timed, warm_up, sampling, args.concurrency))
    plain, stock, nsd = measured

    settings = {key: value for key, value in vars(args).items() if isinstance(value, (int, float)) or key in ("drafter", "proposals")}
    width = shutil.get_terminal_size().columns
    print(f"\n{report.table(plain, stock, nsd)}\n\n{report.explanation(settings, width)}\n")
    for index in range(min(SHOWN_ANSWERS, args.num_prompts)):
        print(f"Prompt {index + 1}: complete {_function_name(problems[index])}\n")
        print(report.side_by_side(plain.answers[index].text, nsd.answers[index].text, plain.name, nsd.name, width) + "\n")
    if args.json:
        report.write_json(args.json, report.document(settings, plain, stock, nsd))
        print(f"All figures: {args.json}")
    return 0


def server_arguments(args: argparse.Namespace, target: Path, head: Path) -> dict[str, list[str]]:
    """The three arms by name, each with its arguments of launch_server: they differ in the speculative flags alone."""
    common = ["--model-path", str(target), "--dtype", "bfloat16", "--random-seed", str(args.seed)]
    # The access log would be nothing but the demo's own health checks.
    common += ["--log-level-http", "warning", "--context-length", "4096", "--max-total-tokens", str(4096 + 2048 * args.concurrency)]
    tree = ["--speculative-draft-model-path", str(head), "--speculative-num-steps", str(args.num_steps)]
    tree += ["--speculative-eagle-topk", str(args.eagle_topk), "--speculative-num-draft-tokens", str(args.num_draft_tokens)]
    stock = {"eagle": "EAGLE", "eagle3": "EAGLE3", "standalone": "STANDALONE"}[args.drafter]
    nsd = ["--nsd-threshold", str(args.threshold), "--nsd-proposals", args.proposals]
    if args.proposals == "sampled":
        nsd += ["--nsd-candidates", str(args.candidates)]
    return {
        "plain": common,
        f"stock {stock}": [*common, "--speculative-algorithm", stock, *tree],
        f"NSD {args.threshold:g}": [*common, "--speculative-algorithm", "NSD", *nsd, *tree],
    }


def _check(args: argparse.Namespace) -> str | None:
    """The first thing wrong with options that are each well-formed, as one line; None when nothing is."""
    problem = tree_problem(args.num_steps, args.eagle_topk, args.num_draft_tokens)
    if problem:
        return problem
    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir() or not writable(args.json.absolute().parent)):
        return f"--json {args.json}: give a file in an existing directory that can be written to"
    if args.proposals == "sampled" and args.candidates < args.eagle_topk:
        return f"--candidates {args.candidates}: give --eagle-topk, {args.eagle_topk}, or more"
    cache = (args.cache_dir or default_cache_dir()).absolute()
    if not writable(cache):
        return f"--cache-dir {cache}: give a directory that can be created and written to"
    return None


def _function_name(code: str) -> str:
    """The name of the last function that a HumanEval problem starts: the one to be completed."""
    return [line for line in code.splitlines() if line.startswith("def ")][-1][4:].split("(")[0]


def _fail(message: str, code: int) -> int:
    print(f"nsd-sglang demo: {message}", file=sys.stderr, flush=True)
    return code
