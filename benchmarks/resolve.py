"""From options to settings: what was not given is filled in, and whatever can be wrong is found before a server starts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nsd_sglang import drafter as drafters
from nsd_sglang.benchmarks import dataset
from nsd_sglang.benchmarks.arms import REJECTION_FAMILIES
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import KINDS, SUITES, Settings
from nsd_sglang.console import tree_problem
from nsd_sglang.options import PROPOSALS, OptionError

# Sized so that all suites of the demo pair take well under 45 minutes on two cores.
DEMO_DEFAULTS = {
    "thresholds": [0.8, 0.95],
    "sampled_thresholds": [0.95],
    "output_len": 32,
    "num_prompts": {1: 3, 8: 16, 32: 32},
    "tree": (4, 3, 12),
    "quality_prompts": 16,
    "quality_tokens": 64,
    "humaneval_problems": 8,
    "humaneval_tokens": 128,
}
DEFAULTS = {"thresholds": [0.8, 0.9, 0.95], "output_len": 256, "num_prompts": {1: 16, 8: 64, 32: 128}}
# Steps, topk, nodes by family of the draft.
TREES = {"eagle": (5, 4, 16), "eagle3": (5, 4, 16), "nextn": (3, 1, 4), "standalone": (4, 1, 5)}
CONCURRENCY = [1, 8, 32]
# The demo pair's pool on a CPU: one long request, and room for every running one.
DEMO_CONTEXT = 4096
DEMO_TOKENS_PER_REQUEST = 512


def settings(options: dict[str, Any], directory: Path, cache_dir: Path) -> Settings:
    """Settings of a run in ``directory`` (which exists; the default dataset is written into it).

    options: as :func:`nsd_sglang.benchmarks.options.given` returns them. Raises BenchError, or DemoError when the demo's
    model or HumanEval cannot be fetched.
    """
    demo = options.get("model") is None
    defaults = DEMO_DEFAULTS if demo else DEFAULTS
    if demo and options.get("draft") is not None:
        raise BenchError("--draft: give its target with --model")
    concurrency = sorted(set(options.get("concurrency", CONCURRENCY)))
    num_prompts = _num_prompts(options.get("num_prompts"), options.get("concurrency", CONCURRENCY), concurrency, defaults)
    ablation = _ablation_concurrency(options.get("ablation_concurrency"), concurrency)
    name = options.get("dataset", "custom")
    path = None if options.get("dataset_path") is None else Path(options["dataset_path"]).expanduser().absolute()
    own_prompts = "dataset" in options or path is not None
    if own_prompts:
        dataset.check(name, path, max(num_prompts))
    # Names and shapes first: they are checked in a moment, the demo's model may have to be fetched.
    model, draft, family = _demo_pair(options, cache_dir) if demo else _pair(options)
    kinds = _kinds(options.get("arms"), model, draft, family)
    steps, topk, nodes = _tree(options, defaults.get("tree") or TREES[family])
    candidates = options.get("candidates", 64)
    proposals = options.get("proposals", list(PROPOSALS))
    if "sampled" in proposals and candidates < topk:
        raise BenchError(f"--candidates {candidates}: give --eagle-topk, {topk}, or more")
    thresholds = list(dict.fromkeys(options.get("thresholds", defaults["thresholds"])))
    sampled_thresholds = thresholds if "thresholds" in options else defaults.get("sampled_thresholds", thresholds)
    sampled_thresholds = options.get("sampled_thresholds", sampled_thresholds)
    tokenizer = options.get("tokenizer", model)
    if not own_prompts or name.startswith("random"):
        dataset.write_human_eval(directory / dataset.HUMAN_EVAL, cache_dir, _tokenizer(tokenizer))
    if not own_prompts:
        path = (directory / dataset.HUMAN_EVAL).absolute()
        dataset.check("custom", path, max(num_prompts))
    local = all(Path(where).is_dir() for where in (model, draft or model, tokenizer))
    return Settings(
        model=model,
        draft=draft,
        tokenizer=tokenizer,
        family=family,
        kinds=kinds,
        thresholds=thresholds,
        sampled_thresholds=list(dict.fromkeys(sampled_thresholds)),
        proposals=proposals,
        candidates=candidates,
        num_steps=steps,
        eagle_topk=topk,
        num_draft_tokens=nodes,
        concurrency=concurrency,
        num_prompts=num_prompts,
        ablation_concurrency=ablation,
        repeats=options.get("repeats", 3),
        dataset=name,
        dataset_path=None if path is None else str(path),
        apply_chat_template=options.get("apply_chat_template", False),
        input_len=options.get("input_len", 256),
        output_len=options.get("output_len", defaults["output_len"]),
        stop_at_eos=options.get("stop_at_eos", False),
        temperature=options.get("temperature", 1.0),
        request_body=options.get("request_body", {}),
        warm_up_requests=options.get("warm_up_requests", 2),
        server_args=_server_args(options, demo, max(concurrency), tokenizer if tokenizer != model else None),
        # Everything lies in folders: no look-ups in a model hub.
        environment={"HF_HUB_OFFLINE": "1"} if local else {},
        seed=options.get("seed", 0),
        suites=[suite for suite in SUITES if suite in options.get("suites", SUITES)],
        **{name: value for name, value in (defaults | options).items() if name.startswith(("quality_", "humaneval_"))},
    )


def _num_prompts(given: list[int] | None, order: list[int], concurrency: list[int], defaults: dict[str, Any]) -> list[int]:
    if given is None:
        known = defaults["num_prompts"]
        return [known.get(at, max(4 * at, 4)) for at in concurrency]
    if len(given) == 1:
        return given * len(concurrency)
    if len(given) != len(order) or len(set(order)) < len(order):
        raise BenchError(f"--num-prompts: {len(given)} numbers; give one, or one for each of the {len(order)} of --concurrency")
    by_concurrency = dict(zip(order, given))
    return [by_concurrency[at] for at in concurrency]


def _ablation_concurrency(given: int | None, concurrency: list[int]) -> int:
    if given is None:
        return min(concurrency, key=lambda at: abs(at - 8))
    if given not in concurrency:
        raise BenchError(f"--ablation-concurrency {given}: give one of --concurrency, {', '.join(map(str, concurrency))}")
    return given


def _kinds(given: list[str] | None, model: str, draft: str | None, family: str) -> list[str]:
    """Kinds of arm; stock rejection sampling only where SGLang has it: not for a standalone draft, not for a reduced vocabulary."""
    kinds = given or list(KINDS)
    if "rejection" not in kinds:
        return kinds
    reason = None
    if family not in REJECTION_FAMILIES:
        reason = f"the draft is {family}"
    elif draft is not None:
        theirs = getattr(_configuration("--draft", draft)[1], "draft_vocab_size", None)
        target = _configuration("--model", model)[1]
        ours = getattr(getattr(target, "text_config", target), "vocab_size", None)
        if theirs and theirs != ours:
            reason = f"the draft has {theirs} of the target's {ours} tokens"
    if reason is None:
        return kinds
    if given is not None:
        raise BenchError(
            f"--arms rejection: {reason}; SGLang's rejection sampling takes EAGLE, EAGLE-3 and MTP drafts with the target's whole "
            "vocabulary"
        )
    return [kind for kind in kinds if kind != "rejection"]


def _tree(options: dict[str, Any], default: tuple[int, int, int]) -> tuple[int, int, int]:
    steps = options.get("num_steps", default[0])
    topk = options.get("eagle_topk", default[1])
    nodes = options.get("num_draft_tokens")
    if nodes is None:
        nodes = steps + 1 if topk == 1 else default[2]
    problem = tree_problem(steps, topk, nodes)
    if problem:
        raise BenchError(problem)
    return steps, topk, nodes


def _server_args(options: dict[str, Any], demo: bool, most: int, tokenizer: str | None) -> list[str]:
    # One limit for all: by default SGLang gives speculating servers a lower one than plain ones.
    words = ["--max-running-requests", str(most), "--log-level-http", "warning"]
    if demo:
        words += ["--dtype", "bfloat16", "--context-length", str(DEMO_CONTEXT)]
        words += ["--max-total-tokens", str(DEMO_CONTEXT + DEMO_TOKENS_PER_REQUEST * most)]
    if tokenizer is not None:
        words += ["--tokenizer-path", tokenizer]
    try:
        return words + shlex.split(options.get("server_args", ""))
    except ValueError as error:
        raise BenchError(f"--server-args: {error}; give words as a shell would take them") from None


def _demo_pair(options: dict[str, Any], cache_dir: Path) -> tuple[str, str, str]:
    from nsd_sglang.demo import model

    family = options.get("drafter", "eagle")
    family = "eagle" if family == "auto" else family
    if family not in model.DRAFTERS:
        raise BenchError(f"--drafter {family}: the demo's model has {', '.join(model.DRAFTERS)}; or give --model")
    target = model.prepare_target(cache_dir)
    return str(target), str(model.prepare_head(cache_dir, target, family)), family


def _pair(options: dict[str, Any]) -> tuple[str, str | None, str]:
    """Target, draft and its family; what is no folder has to be a Hugging Face name whose config.json can be fetched."""
    name, target = _configuration("--model", options["model"])
    draft_name, draft = (None, None) if options.get("draft") is None else _configuration("--draft", options["draft"])
    try:
        chosen = drafters.resolve(options.get("drafter", "auto"), draft_name, draft, name, target)
    except OptionError as error:
        text = str(error).replace("--speculative-draft-model-path", "--draft").replace("--nsd-drafter", "--drafter")
        raise BenchError(text) from None
    return name, draft_name, chosen.family


def _configuration(option: str, name: str) -> tuple[str, Any]:
    """The checkpoint's resolved name and its config.json as nested namespaces."""
    folder = Path(name).expanduser()
    accepted = "give a checkpoint folder with a config.json, or a Hugging Face name"
    if folder.is_dir():
        file = folder / "config.json"
        if not file.is_file():
            raise BenchError(f"{option} {name}: this folder has no config.json; {accepted}")
        name = str(folder.absolute())
    elif folder.exists() or name.startswith(("/", ".", "~")) or name.count("/") > 1 or not name:
        raise BenchError(f"{option} {name}: there is no such folder; {accepted}")
    else:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils import logging

        # Its retries would be told line by line.
        logging.set_verbosity_error()
        try:
            file = Path(hf_hub_download(name, "config.json"))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise BenchError(f"{option} {name}: no such folder, and not fetched from Hugging Face ({reason}); {accepted}") from None
    try:
        return name, json.loads(file.read_text(), object_hook=lambda pairs: SimpleNamespace(**pairs))
    except (OSError, ValueError, TypeError) as error:
        raise BenchError(f"{option} {name}: its config.json cannot be read: {error}") from None


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise BenchError(f"--tokenizer {name}: no tokenizer can be loaded ({reason}); give a folder or a Hugging Face name") from None
