"""Real servers on the CPU platform with SGLang's own speculation: what they say at temperature 0 is what plain decoding says."""

import random

import pytest
import torch
from serving import serve
from tiny_models import write_tiny_models

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="the platform is for machines without one")

CHAIN = ("--speculative-num-steps", 3, "--speculative-eagle-topk", 1, "--speculative-num-draft-tokens", 4)
TREE = ("--speculative-num-steps", 3, "--speculative-eagle-topk", 3, "--speculative-num-draft-tokens", 10)
NEW_TOKENS = 48

# Different lengths, so that a batch is ragged; two share a prefix, so that the radix cache is used within a run.
_random = random.Random(1)
PROMPTS = [[_random.randrange(256) for _ in range(_random.randrange(8, 60))] for _ in range(8)]
PROMPTS[1] = PROMPTS[0][:20] + PROMPTS[1]


def request(prompt, **sampling):
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, **sampling}
    return {"input_ids": prompt, "sampling_params": params}


def tokens(answers):
    return [answer["output_ids"] for answer in answers]


def drafts_accepted(answers):
    return sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def plain(models, logs):
    """What the target says to every prompt without speculation."""
    with serve(models.target, "--dtype", "float32", log=logs / "plain.log") as server:
        serial = tokens([server.generate(**request(p)) for p in PROMPTS])
        assert tokens(server.generate_all([request(p) for p in PROMPTS])) == serial
    assert all(len(t) == NEW_TOKENS for t in serial)
    return serial


@pytest.mark.parametrize(
    "algorithm, drafter, args",
    [
        ("EAGLE", "eagle", (*CHAIN, "--speculative-use-rejection-sampling", "--disable-overlap-schedule")),
        ("EAGLE", "eagle", TREE),
        ("EAGLE3", "eagle3", TREE),
        ("STANDALONE", "standalone", (*CHAIN, "--page-size", 4)),
        ("STANDALONE", "standalone", (*TREE, "--disable-overlap-schedule")),
    ],
    ids=["eagle-chain", "eagle-tree", "eagle3-tree", "standalone-chain", "standalone-tree"],
)
def test_speculation_changes_nothing_at_temperature_0(models, logs, plain, algorithm, drafter, args, request: pytest.FixtureRequest):
    log = logs / f"{request.node.callspec.id}.log"
    draft = ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", getattr(models, drafter))
    with serve(models.target, "--dtype", "float32", *draft, *args, log=log) as server:
        check_greedy(server, plain)
        check_sampled(server, plain)


def check_greedy(server, plain):
    serial = [server.generate(**request(p)) for p in PROMPTS]
    assert tokens(serial) == plain
    assert serial[1]["meta_info"]["cached_tokens"] > 10
    assert drafts_accepted(serial) > 20
    # All prompts are in the radix cache by now; then once more without it.
    again = server.generate_all([request(p) for p in PROMPTS])
    assert tokens(again) == plain
    assert all(answer["meta_info"]["cached_tokens"] > 0 for answer in again)
    server.flush_cache()
    assert tokens(server.generate_all([request(p) for p in PROMPTS])) == plain


def check_sampled(server, plain):
    """Sampling and filters beside a greedy request, which is one-hot only after its own top-k of 1."""
    sampled = [
        request(PROMPTS[1], temperature=1.0),
        request(PROMPTS[2], temperature=0.8, top_k=20),
        request(PROMPTS[3], temperature=1.0, top_p=0.9),
        request(PROMPTS[4], temperature=1.0, top_k=50, top_p=0.8),
    ]
    answers = server.generate_all([request(PROMPTS[0]), *sampled])
    assert tokens(answers[:1]) == plain[:1]
    assert all(len(t) == NEW_TOKENS and all(0 <= x < 320 for x in t) for t in tokens(answers))
    assert drafts_accepted(answers[1:]) > 0


def test_bfloat16_on_two_ranks(models, logs):
    draft = ("--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", models.eagle, *TREE)
    env = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
    with serve(models.target, "--dtype", "bfloat16", "--tp", 2, *draft, log=logs / "tp2.log", env=env) as server:
        answers = server.generate_all([request(p, temperature=i % 2) for i, p in enumerate(PROMPTS)])
        assert all(len(t) == NEW_TOKENS for t in tokens(answers))
        assert drafts_accepted(answers) > 20
        chat = server.post("/v1/chat/completions", model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=4)
        assert chat.status_code == 200, chat.text
