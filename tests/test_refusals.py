"""Command lines that NSD refuses, in one line and before any model is loaded."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from serving import CHAIN, TREE, run_to_exit
from tiny_models import write_tiny_models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("models"))


REFUSALS = {
    "a threshold above 1": (("--nsd-threshold", "1.5"), ("--nsd-threshold accepts a number from 0 to 1, got '1.5'",)),
    "an unknown drafter": (("--nsd-drafter", "medusa"), ("--nsd-drafter accepts one of auto, eagle, eagle3",)),
    "no draft path": ((), ("--speculative-draft-model-path is required", "Accepted: an EAGLE head")),
    "a path that is not there": (
        ("--speculative-draft-model-path", "/nowhere/draft"),
        ("--speculative-draft-model-path /nowhere/draft", "Accepted: a local folder with a config.json"),
    ),
    "a file for a checkpoint": (
        ("--speculative-draft-model-path", "{eagle}/config.json"),
        ("--speculative-draft-model-path", "this is a file. Accepted: a local folder with a config.json"),
    ),
    "a drafter that the checkpoint is not": (
        ("--speculative-draft-model-path", "{eagle}", "--nsd-drafter", "standalone"),
        ("--nsd-drafter standalone does not fit", "Accepted: auto, eagle"),
    ),
    "the kernel without a GPU or the interpreter": (
        ("--speculative-draft-model-path", "{eagle}", "--nsd-verify-backend", "triton"),
        ("--nsd-verify-backend triton needs a GPU, or TRITON_INTERPRET=1", "accepted here: auto, torch"),
    ),
    "relaxed thresholds of SGLang": (
        ("--speculative-draft-model-path", "{eagle}", "--speculative-accept-threshold-single", "0.5"),
        ("--speculative-accept-threshold-single accepts only 1.0 with NSD, got 0.5; use --nsd-threshold",),
    ),
    "a tree that cannot hold its nodes": (
        ("--speculative-draft-model-path", "{eagle}", *TREE[:-1], "60"),
        ("--speculative-num-draft-tokens accepts 2 to 11 for 3 steps of top-2, got 60",),
    ),
    "half a tree shape": (
        ("--speculative-draft-model-path", "{eagle}", "--speculative-num-steps", "3"),
        ("--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens are given together",),
    ),
    "fewer candidates than children": (
        ("--speculative-draft-model-path", "{eagle}", "--nsd-proposals", "sampled", "--nsd-candidates", "1", *TREE),
        ("--nsd-candidates accepts --speculative-eagle-topk (2) or more, got 1",),
    ),
    "rejection sampling of a tree": (
        ("--speculative-draft-model-path", "{eagle}", "--speculative-use-rejection-sampling", *TREE),
        ("--speculative-use-rejection-sampling requires --speculative-eagle-topk=1, got 2; --nsd-proposals sampled",),
    ),
    "attention data parallelism with a standalone draft": (
        ("--speculative-draft-model-path", "{standalone}", "--enable-dp-attention", "--dp-size", "2", "--tp-size", "2", *CHAIN),
        ("standalone speculative decoding does not support dp attention",),
    ),
    "pages with a tree": (
        ("--speculative-draft-model-path", "{eagle}", "--page-size", "16", *TREE),
        ("speculative_eagle_topk > 1 with page_size > 1 is only supported on",),
    ),
    "adapters beside a standalone draft": (
        ("--speculative-draft-model-path", "{standalone}", "--enable-lora", *CHAIN),
        ("--enable-lora does not work with a standalone draft; accepted: an EAGLE, EAGLE-3 or MTP drafter",),
    ),
    "adapters without a GPU": (
        ("--speculative-draft-model-path", "{eagle}", "--lora-paths", "name=/somewhere", *CHAIN),
        ("--enable-lora needs a GPU",),
    ),
    "a draft with another tokenizer": (
        ("--speculative-draft-model-path", "{foreign}", *CHAIN),
        ("its tokenizer gives 2 of", "Accepted: a draft with the target's tokenizer"),
    ),
    "a draft with a shorter context": (
        ("--speculative-draft-model-path", "{short}", *CHAIN),
        ("it was made for 128 tokens, this server takes 1024. Accepted: --context-length up to 128, or SGLANG_ALLOW",),
    ),
}


@pytest.fixture(scope="module")
def foreign(models, tmp_path_factory):
    """The standalone draft with two tokens exchanged in its tokenizer."""
    folder = tmp_path_factory.mktemp("foreign") / "draft"
    shutil.copytree(models.standalone, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


@pytest.fixture(scope="module")
def short(models, tmp_path_factory):
    """The EAGLE head, made for fewer positions than the target has."""
    folder = tmp_path_factory.mktemp("short") / "draft"
    shutil.copytree(models.eagle, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    return str(folder)


RESOLVE = """
import contextlib, io, json, sys
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
load_plugins()
outcomes = []
for arguments in json.load(sys.stdin):
    printed = io.StringIO()
    code = 0
    try:
        with contextlib.redirect_stderr(printed):
            prepare_server_args(arguments).resolve_once()
    except SystemExit as stop:
        code = stop.code
    outcomes.append([code, printed.getvalue()])
json.dump(outcomes, sys.stdout)
"""


@pytest.fixture(scope="module")
def refusal_arguments(models, foreign, short):
    paths = {"eagle": models.eagle, "standalone": models.standalone, "foreign": foreign, "short": short}
    common = ["--model-path", models.target, "--speculative-algorithm", "NSD"]
    return {name: common + [arg.format(**paths) for arg in args] for name, (args, _) in REFUSALS.items()}


@pytest.fixture(scope="module")
def outcomes(refusal_arguments):
    """What argument resolution, which runs before any model is loaded, says to each command line."""
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input=json.dumps(list(refusal_arguments.values())),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(refusal_arguments, json.loads(done.stdout.splitlines()[-1])))


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_in_one_line_that_names_the_option(name, outcomes):
    code, printed = outcomes[name]
    assert code == 2
    errors = [line for line in printed.splitlines() if line.startswith("sglang: error: ")]
    assert len(errors) == 1, printed
    for word in REFUSALS[name][1]:
        assert word in errors[0]


@pytest.mark.parametrize("name", ["a threshold above 1", "a draft with another tokenizer"])
def test_a_refused_server_exits_without_a_traceback_or_a_process(name, refusal_arguments, tmp_path):
    log = tmp_path / "server.log"
    model, *args = refusal_arguments[name][1:]
    assert run_to_exit(model, *args, log=log) == 2
    printed = log.read_text()
    assert REFUSALS[name][1][0] in printed
    assert "Traceback" not in printed and "Load weight" not in printed
    models_folder = str(Path(model).parent)
    assert not [p for p in psutil.process_iter(["cmdline"]) if models_folder in " ".join(p.info["cmdline"] or ())]


def test_nsd_flags_without_the_algorithm_are_refused(models, tmp_path):
    log = tmp_path / "server.log"
    assert run_to_exit(models.target, "--nsd-threshold", "0.5", log=log) == 2
    assert "--nsd-threshold needs --speculative-algorithm NSD, got None" in log.read_text()
