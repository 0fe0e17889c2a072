"""Two servers for this folder: NSD and plain decoding on the same tiny model, asked the same things.

NSD_TEST_GRAMMAR_BACKEND=llguidance runs the folder with SGLang's other grammar backend.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.register_assert_rewrite("answer_contents", "control_endpoints", "few_kits", "parsed_answers", "structured_output")

from kit_models import write_thinking_models  # noqa: E402
from serving import serve  # noqa: E402

TREE = ("--speculative-num-steps", "4", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8")
GRAMMAR = os.environ.get("NSD_TEST_GRAMMAR_BACKEND", "xgrammar")
COMMON = (
    *("--dtype", "float32", "--enable-return-hidden-states", "--grammar-backend", GRAMMAR),
    *("--reasoning-parser", "qwen3", "--tool-call-parser", "pythonic"),
    # A random model would fill JSON with blanks.
    "--constrained-json-disable-any-whitespace",
)
# The end of an answer is proposed, and accepted, often enough that blocks end answers before their own end.
EOS_GAIN = 1.5
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_thinking_models(tmp_path_factory.mktemp("parity") / "models", EOS_GAIN)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Where the NSD server records its verify steps."""
    return tmp_path_factory.mktemp("trace") / "trace.jsonl"


@pytest.fixture(scope="module")
def servers(models, trace, tmp_path_factory):
    """NSD and plain, started at the same time. Every token of positive probability is in a nucleus of 1: whatever the gate
    could let through, it does."""
    nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", "1", "--speculative-draft-model-path", models.eagle, *TREE)
    arms = {"nsd": ((*nsd, "--nsd-trace", str(trace)), STRICT), "plain": ((), {})}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:

        def start(name):
            args, env = arms[name]
            return stack.enter_context(serve(models.target, *COMMON, *args, log=tmp_path_factory.mktemp(name) / "server.log", env=env))

        yield dict(zip(arms, pool.map(start, arms)))


@pytest.fixture
def nsd(servers):
    return servers["nsd"]


@pytest.fixture
def plain(servers):
    return servers["plain"]
