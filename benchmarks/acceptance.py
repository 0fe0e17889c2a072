"""Accepted length of the demo pair with sampled proposals: standard verification (theta = 0) against NSD, chain and tree.

    python benchmarks/acceptance.py [--drafter eagle|eagle3|standalone] [--threshold 0.95] [--num-prompts 32]

Each figure is of a fresh server with the same prompts, proposals and seed; only the threshold differs within a row.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from nsd_sglang.demo import model, prompts
from nsd_sglang.demo.cache import default_cache_dir
from nsd_sglang.demo.measure import run_prompts
from nsd_sglang.demo.server import Server

# Steps, topk, nodes.
SHAPES = {"chain": (3, 1, 4), "tree": (5, 3, 14)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", choices=model.DRAFTERS, default="eagle")
    parser.add_argument("--threshold", type=float, default=0.95)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    args = parser.parse_args()

    cache = default_cache_dir()
    target = model.prepare_target(cache)
    draft = model.prepare_head(cache, target, args.drafter)
    problems = prompts.load_problems(prompts.prepare_problems(cache))
    requests = prompts.chat_prompts(problems, AutoTokenizer.from_pretrained(target))[: args.num_prompts]
    sampling = {"temperature": 1.0, "max_new_tokens": args.max_new_tokens}
    lines = [f"{'':8}{'theta 0':>9}{f'NSD {args.threshold:g}':>10}{'ratio':>8}"]
    for name in args.shapes:
        lengths = []
        for threshold in (0.0, args.threshold):
            server_args = server_arguments(target, draft, SHAPES[name], threshold, args.candidates)
            log = cache / "logs" / time.strftime(f"acceptance-%H%M%S-{name}-{threshold:g}.log")
            with Server(f"{name}, theta {threshold:g}", server_args, log) as server:
                answers, _ = run_prompts(server, requests, sampling, args.concurrency, server.name)
            decoded = sum(answer.output_tokens - 1 for answer in answers)
            lengths.append(decoded / sum(answer.verify_calls for answer in answers))
        lines.append(f"{name:8}{lengths[0]:9.2f}{lengths[1]:10.2f}{lengths[1] / lengths[0]:8.2f}")
    print(f"\nTokens per verify call, {args.drafter} draft, {args.num_prompts} HumanEval prompts, temperature 1, C = {args.candidates}")
    print("\n".join(lines))
    return 0


def server_arguments(target: Path, draft: Path, shape: tuple[int, int, int], threshold: float, candidates: int) -> list[str]:
    steps, topk, nodes = map(str, shape)
    words = ["--model-path", str(target), "--dtype", "bfloat16", "--random-seed", "0", "--log-level-http", "warning"]
    words += ["--context-length", "4096", "--max-total-tokens", "16384", "--speculative-algorithm", "NSD"]
    words += ["--nsd-threshold", str(threshold), "--nsd-proposals", "sampled", "--nsd-candidates", str(candidates)]
    words += ["--speculative-draft-model-path", str(draft), "--speculative-num-steps", steps]
    return [*words, "--speculative-eagle-topk", topk, "--speculative-num-draft-tokens", nodes]


if __name__ == "__main__":
    sys.exit(main())
