"""Bodies that no client should send: each is refused with HTTP 400 or answered, and the server serves on."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from serving import serve
from tiny_models import VOCAB, write_tiny_models

CHAIN = ("--speculative-num-steps", "2", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3")
PROMPT = [256, 1, 2, 3]

# Of every type, at and past the ends of every range.
VALUES = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-9, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**63, -(2**64), 10**40,
    "", "0.5", "x", "\u0000", "\ud83d\ude00" * 50, "a" * 5000, [], [0], ["x"], [[1]], [None], {}, {"a": 1}, {"a": {"b": [1]}},
]
SAMPLING = [
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag",
    "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias",
    "sampling_seed", "custom_params", "no_such_parameter",
]  # fmt: skip
CUSTOM = ["nsd_threshold", "nsd_epsilon", "nsd_agreement", "nsd_protect_stop", "nsd_scope", "nsd_unknown", "thinking_budget"]
FIELDS = [
    "input_ids", "text", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
    "return_text_in_logprobs", "stream", "rid", "return_hidden_states", "priority", "lora_path", "session_params",
    "custom_logit_processor", "extra_key", "image_data", "input_embeds",
]  # fmt: skip
OPENAI = ["prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "logprobs", "logit_bias", "seed", "echo", "custom_params"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("malformed")
    models = write_tiny_models(folder / "models")
    nsd = ("--speculative-algorithm", "NSD", "--speculative-draft-model-path", models.eagle, *CHAIN)
    nsd += ("--enable-custom-logit-processor",)
    with serve(models.target, "--dtype", "float32", *nsd, log=folder / "server.log") as server:
        yield server


def bodies():
    for name in SAMPLING:
        for value in VALUES:
            yield "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, name: value}}
    for name in CUSTOM:
        for value in VALUES:
            yield "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "custom_params": {name: value}}}
    for name in FIELDS:
        for value in [*VALUES, [VOCAB], [-1], [0] * 3000, [[1, 2], [3]]]:
            yield "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3}, name: value}
    for name in ["id", "rid", "offset", "replace", "drop_previous_output", "no_such_parameter"]:
        for value in VALUES:
            yield "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3}, "session_params": {"id": "none", name: value}}
    for value in ['{"callable": "zz"}', '{"callable": "80054e2e"}', '{"callable": 1}', "{}", json.dumps({"callable": pickle.dumps(len).hex()})]:
        yield "/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3}, "custom_logit_processor": value}
    yield "/generate", {"text": "", "sampling_params": {"max_new_tokens": 3}}
    yield "/generate", {"sampling_params": {"max_new_tokens": 3}}
    for name in OPENAI:
        for value in VALUES:
            yield "/v1/completions", {"model": "m", "prompt": "hello", "max_tokens": 3, name: value}


def send(server, path, body):
    try:
        response = requests.post(server.url + path, data=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=60)
        return response.status_code, response.text
    except requests.RequestException as error:
        return 0, repr(error)


def test_every_body_is_answered_or_refused(server):
    cases = list(bodies())
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda case: send(server, *case), cases))
    wrong = [(path, str(body)[:150], code, text[:300]) for (path, body), (code, text) in zip(cases, outcomes) if code not in (200, 400)]
    assert not wrong, (len(wrong), wrong[:20])
    refused = sum(code == 400 for code, _ in outcomes)
    assert refused > len(cases) // 3 and refused < len(cases)
    assert server.generate(input_ids=PROMPT, sampling_params={"temperature": 0, "max_new_tokens": 3})["meta_info"]["completion_tokens"] == 3
