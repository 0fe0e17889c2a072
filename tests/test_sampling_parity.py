"""What a request may ask of the sampler gives the same under NSD as in plain decoding: tiny models, float32, servers."""

import json

import dill
import pytest
import torch
from transformers import AutoModelForCausalLM

from exact_law import chi_square_p, exact_law, penalised
from serving import serve
from tiny_models import write_tiny_models

TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "3", "--speculative-num-draft-tokens", "9")
CHAIN = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
PROMPTS = [[256, *(17 * i % 250 for i in range(n, n + 12))] for n in range(3)]
LENGTH = 32
PENALTIES = {
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 0.9},
    "repetition": {"repetition_penalty": 1.3},
    "rewards": {"frequency_penalty": -1.1, "repetition_penalty": 0.8},
    "combined": {"frequency_penalty": 0.7, "presence_penalty": 0.9, "repetition_penalty": 1.3},
}


def processors():
    """Local classes: dill sends them by value, and the server cannot import this module."""

    class Bias:
        """Adds `bias` to the token `token` of the parameters."""

        def __call__(self, logits, custom_param_list):
            for row, params in zip(logits, custom_param_list):
                row[params["token"]] += params["bias"]
            return logits

    class Rhythm:
        """Every third token of the answer is 7, and no token follows itself: needs the tokens just before each node."""

        def __call__(self, logits, custom_param_list):
            for row, params in zip(logits, custom_param_list):
                answer = params["__req__"].output_ids
                if len(answer) % 3 == 2:
                    row[:] = -1e4
                    row[7] = 0.0
                elif len(answer):
                    row[answer[-1]] = -1e4
            return logits

    return tuple(json.dumps({"callable": dill.dumps(cls, recurse=True).hex()}) for cls in (Bias, Rhythm))


BIAS, RHYTHM = processors()


def greedy(**parameters):
    return {"temperature": 0, "max_new_tokens": LENGTH, "ignore_eos": True, **parameters}


def bodies(plain):
    """One request of every kind; `plain`: the answers to PROMPTS that ask for nothing special."""
    made = {
        f"{name} {i}": {"input_ids": prompt, "sampling_params": greedy(**given)}
        for name, given in PENALTIES.items()
        for i, prompt in enumerate(PROMPTS)
    }
    for i, (prompt, answer) in enumerate(zip(PROMPTS, plain)):
        ids, text = answer["output_ids"], answer["text"]
        for name, parameters in {
            "logit bias": {"logit_bias": {"42": 9.5, str(ids[2]): -100}},
            "stop token": {"stop_token_ids": [ids[5]], "ignore_eos": False},
            "stop string": {"stop": text[4:6]},
            "stop string kept": {"stop": text[4:6], "no_stop_trim": True},
            "late stop": {"stop_token_ids": sorted(set(ids)), "min_new_tokens": 9, "ignore_eos": False},
            "late end": {"min_new_tokens": 10, "logit_bias": {"257": 100}, "ignore_eos": False},
            "an end": {"logit_bias": {"257": 8.5}, "ignore_eos": False},
            "one token": {"max_new_tokens": 1},
            "two tokens": {"max_new_tokens": 2},
            "cap in a block": {"max_new_tokens": 7},
            "almost greedy": {"temperature": 1e-5},
            "greedy by top-k": {"temperature": 3.0, "top_k": 1},
            "several": {"n": 3, "presence_penalty": 0.9},
        }.items():
            made[f"{name} {i}"] = {"input_ids": prompt, "sampling_params": greedy(**parameters)}
        given = {"custom_params": {"token": ids[3], "bias": -30.0 + i}}
        made[f"bias processor {i}"] = {"input_ids": prompt, "sampling_params": greedy(**given)}
        made[f"bias processor {i}"]["custom_logit_processor"] = BIAS
        made[f"history processor {i}"] = {
            "input_ids": prompt,
            "sampling_params": greedy(custom_params={"any": 1}, repetition_penalty=1.1, logit_bias={"9": 3.0}),
            "custom_logit_processor": RHYTHM,
        }
        made[f"logprobs {i}"] = {
            "input_ids": prompt,
            "sampling_params": greedy(**PENALTIES["combined"]),
            "return_logprob": True,
        }
    return made


def outcome(answers):
    """What a client sees of one answer, or of the n answers to one prompt."""
    answers = answers if isinstance(answers, list) else [answers]
    return [(answer["output_ids"], answer["text"], answer["meta_info"]["finish_reason"]) for answer in answers]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(models, tmp_path_factory):
    """Requests of every kind and the answers of plain decoding, one at a time."""
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with serve(models.target, "--dtype", "float32", "--enable-custom-logit-processor", log=log) as server:
        usual = [server.generate(input_ids=prompt, sampling_params=greedy()) for prompt in PROMPTS]
        requests = bodies(usual)
        return requests, {name: server.generate(**body) for name, body in requests.items()}


@pytest.fixture
def start(models, tmp_path):
    def start(draft, *args, env=None):
        nsd = ("--speculative-algorithm", "NSD", "--speculative-draft-model-path", draft, "--nsd-threshold", "0")
        wanted = ("--dtype", "float32", "--enable-custom-logit-processor")
        return serve(models.target, *wanted, *nsd, *args, log=tmp_path / "server.log", env=env)

    return start


def assert_same_as_plain(server, plain):
    """One of each kind alone, then all at once among sampled requests."""
    requests, expected = plain
    for name, body in requests.items():
        if not name.endswith("0"):
            continue
        assert outcome(server.generate(**body)) == outcome(expected[name]), name
    noise = {"temperature": 1, "max_new_tokens": 40, "ignore_eos": True, "min_p": 0.05, "top_k": 30, "presence_penalty": 0.5}
    noisy = [body for each in requests.values() for body in (each, {"input_ids": PROMPTS[1], "sampling_params": noise})]
    answers = server.generate_all(noisy)[::2]
    for name, answer in zip(requests, answers):
        assert outcome(answer) == outcome(expected[name]), f"{name} in a mixed batch"
        if name.startswith("logprobs"):
            found, wanted = ([pair[0] for pair in a["meta_info"]["output_token_logprobs"]] for a in (answer, expected[name]))
            assert found == pytest.approx(wanted, abs=1e-3)
    single = [answer for answer in answers if isinstance(answer, dict)]
    assert sum(answer["meta_info"].get("spec_num_correct_drafts", 0) for answer in single) > len(single)


def law_p(server, models, **parameters):
    """p value of 1,500 answers of three tokens under the exact law, drawn in batches of several requests."""
    sampling = {"max_new_tokens": 3, "ignore_eos": True, "n": 25, **parameters}
    batches = server.generate_all([{"input_ids": PROMPTS[0], "sampling_params": sampling}] * 60, 4)
    answers = [tuple(answer["output_ids"]) for batch in batches for answer in batch]
    return chi_square_p(answers, exact_law(models.target, PROMPTS[0], 3, **parameters))


def test_plain_decoding_counts_every_token_of_the_answer(models, plain):
    """The yardstick itself, against float32 forward passes."""
    model = AutoModelForCausalLM.from_pretrained(models.target, dtype=torch.float32).eval()
    for name, given in PENALTIES.items():
        for i, prompt in enumerate(PROMPTS):
            answer = []
            for _ in range(LENGTH):
                with torch.no_grad():
                    logits = model(torch.tensor([prompt + answer])).logits[0, -1]
                answer.append(int(penalised(logits, answer, **given).argmax()))
            assert plain[1][f"{name} {i}"]["output_ids"] == answer, f"{name} {i}"


def test_the_kinds_of_request_do_what_their_names_say(plain):
    lengths = {name: len(a["output_ids"]) for name, a in plain[1].items() if isinstance(a, dict)}
    for i in range(len(PROMPTS)):
        assert lengths[f"stop token {i}"] <= 6 and lengths[f"stop string {i}"] < LENGTH
        assert lengths[f"late end {i}"] == 11 and plain[1][f"late end {i}"]["output_ids"][-1] == 257
        assert 9 < lengths[f"late stop {i}"] and lengths[f"cap in a block {i}"] == 7
        assert plain[1][f"history processor {i}"]["output_ids"][2::3] == [7] * (LENGTH // 3)


def test_a_tree_of_sampled_proposals(start, models, plain):
    with start(models.eagle, "--nsd-proposals", "sampled", *TREE) as server:
        assert_same_as_plain(server, plain)
        assert law_p(server, models, top_k=12, top_p=0.8, min_p=0.06, temperature=0.9) > 1e-3
        assert law_p(server, models, top_k=3, presence_penalty=1.5, frequency_penalty=0.4, repetition_penalty=1.2) > 1e-3


def test_a_chain_of_top_k_proposals_without_overlap(start, models, plain):
    """And with retractions: a request that is prefilled again goes on as if nothing had happened."""
    retract = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "11"}
    chain = ("--nsd-proposals", "topk", *CHAIN, "--disable-overlap-schedule")
    with start(models.standalone, *chain, env=retract) as server:
        assert_same_as_plain(server, plain)
        assert "retracted_reqs" in server.log.read_text()
        assert law_p(server, models, min_p=0.2, temperature=0.8) > 1e-3
