"""The options of ``nsd-sglang bench``. None of them has a default for argparse: what was given is told from what was not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsd_sglang.benchmarks.settings import DATASETS, KINDS, SUITES
from nsd_sglang.console import number, one_line_errors
from nsd_sglang.options import DRAFTERS, PROPOSALS

# Not settings of the measurement: where it goes.
PLACES = ("output", "resume", "cache_dir", "command")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to ``parser``; a bad value is refused while parsing, in one line, with exit code 2."""
    one_line_errors(parser)
    model = parser.add_argument_group("what is served (by default the demo's model and draft)")
    option = model.add_argument
    option("--model", metavar="PATH", help="target: a checkpoint folder or a Hugging Face name")
    option("--draft", metavar="PATH", help="draft checkpoint; without it the target has to carry MTP layers")
    option("--drafter", choices=DRAFTERS, help="family of the draft (default: read off its config.json; the demo: eagle)")
    option("--tokenizer", metavar="PATH", help="tokenizer, where it is not the target's own")
    option("--server-args", metavar='"..."', help='more arguments of launch_server, for every arm: --server-args="--tp 2"')

    arms = parser.add_argument_group("arms")
    option = arms.add_argument
    option("--arms", type=_choices(KINDS), metavar="A,B", help=f"kinds of arm, of {', '.join(KINDS)} (default: all that SGLang has for the draft)")
    option("--thresholds", type=_numbers(float, 0, 1), metavar="T,T", help="NSD's thresholds, 0 to 1 (default 0.8,0.9,0.95; the demo: 0.8,0.95)")
    option("--sampled-thresholds", type=_numbers(float, 0, 1), metavar="T,T", help="those of sampled proposals (default: --thresholds; the demo: 0.95)")
    option("--proposals", type=_choices(PROPOSALS), metavar="P,P", help="NSD's proposals, topk and/or sampled (default both)")
    option("--candidates", type=number(int, 1, 1024), help="tokens a sampled proposal is drawn from (default 64)")
    option("--num-steps", type=number(int, 1, 16), help="depth of the draft tree (default by draft; the demo: 4)")
    option("--eagle-topk", type=number(int, 1, 16), help="children of a node of the draft tree (the demo: 3)")
    option("--num-draft-tokens", type=number(int, 2, 256), help="nodes of the draft tree (the demo: 12)")

    load = parser.add_argument_group("load")
    option = load.add_argument
    option("--concurrency", type=_numbers(int, 1, 4096), metavar="C,C", help="requests at a time (default 1,8,32)")
    option("--num-prompts", type=_numbers(int, 1, 1_000_000), metavar="N,N", help="requests in all: one number, or one for every concurrency")
    option("--repeats", type=number(int, 1, 100), help="repeats of the comparison (default 3)")
    option("--dataset", choices=DATASETS, help="dataset of bench_serving (default: HumanEval's problems in the chat format)")
    option("--dataset-path", metavar="FILE", help="its file")
    option("--apply-chat-template", action="store_true", default=None, help="put the dataset's prompts into the chat format")
    option("--input-len", type=number(int, 2, 1_000_000), help="tokens of a prompt of the dataset random (default 256)")
    option("--output-len", type=number(int, 4, 1_000_000), help="tokens of an answer (default 256; the demo: 32)")
    option("--stop-at-eos", action="store_true", default=None, help="let answers end by themselves, before --output-len")
    option("--temperature", type=number(float, 0, 2), help="sampling temperature, 0 to 2 (default 1)")
    option("--request-body", type=_json_object, metavar="JSON", help="merged into the body of every /generate request")
    option("--warm-up-requests", type=number(int, 1, 1024), help="untimed requests before every unit (default 2)")
    option("--seed", type=number(int, 0, 2**31 - 1001), help="of prompts and servers; every repeat adds one (default 0)")

    quality = parser.add_argument_group("quality")
    option = quality.add_argument
    option("--quality-prompts", type=number(int, 0, 1_000_000), metavar="N", help="the dataset's first N prompts, 0 for none (default 24; the demo: 16)")
    option("--quality-samples", type=number(int, 1, 1000), metavar="N", help="answers to each (default 1)")
    option("--quality-tokens", type=number(int, 2, 1_000_000), metavar="N", help="at most, of an answer (default 96; the demo: 64)")
    option("--humaneval-problems", type=number(int, 0, 164), metavar="N", help="HumanEval's first N problems, 0 for none (default 164; the demo: 8)")
    option("--humaneval-samples", type=number(int, 1, 1000), metavar="N", help="answers to each (default 1)")
    option("--humaneval-tokens", type=number(int, 2, 1_000_000), metavar="N", help="at most, of an answer (default 512; the demo: 128)")

    run = parser.add_argument_group("run")
    option = run.add_argument
    option("--suites", type=_choices(SUITES), metavar="S,S", help=f"of {', '.join(SUITES)} (default: all)")
    option("--ablation-concurrency", type=number(int, 1, 4096), help="one of --concurrency, for the other suites (default: 8, or the nearest)")
    option("--output", type=Path, metavar="DIR", help="where results go (default bench-results/TIME)")
    option("--resume", type=Path, metavar="DIR", help="go on with the run in DIR, with its settings")
    option("--cache-dir", type=Path, help="the demo's model and HumanEval (default ~/.cache/nsd-sglang)")


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The options of the measurement that stood on the command line, ready for JSON."""
    return {name: value for name, value in vars(args).items() if value is not None and name not in PLACES}


def _numbers(kind: type, low: float, high: float) -> Callable[[str], list]:
    parse_one = number(kind, low, high)

    def parse(text: str) -> list:
        return [parse_one(word) for word in text.split(",")]

    return parse


def _choices(accepted: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        wrong = [word for word in words if word not in accepted]
        if wrong or len(set(words)) < len(words):
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted; give some of {', '.join(accepted)}, with commas")
        return words

    return parse


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("sampling_params", {}), dict):
        raise argparse.ArgumentTypeError(f"""{text!r} is not accepted; give a JSON object, such as '{{"sampling_params": {{"top_p": 0.9}}}}'""")
    return value
