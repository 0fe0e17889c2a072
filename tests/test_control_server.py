"""Per-request control in a real server: what each request gets, what its answer says, and whom it does not touch."""

import json

import pytest
import requests

from serving import serve
from tiny_models import VOCAB, write_tiny_models

TREE = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6")
PROMPT = [256, *range(12)]
START, END = 7, 9


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("control")
    models = write_tiny_models(folder / "models")
    nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", "0.9", "--nsd-max-threshold", "1")
    nsd += ("--nsd-think-ids", f"{START},{END}", "--speculative-draft-model-path", models.eagle)
    more = ("--enable-metrics", "--decode-log-interval", "4")
    with serve(models.target, "--dtype", "float32", *nsd, *TREE, *more, log=folder / "server.log") as server:
        yield server


def body(custom=None, prompt=PROMPT, **sampling):
    sampling = {"temperature": 1, "max_new_tokens": 40, "ignore_eos": True, **sampling}
    return {"input_ids": prompt, "sampling_params": sampling | ({} if custom is None else {"custom_params": custom})}


def reports(server, bodies):
    return [answer["meta_info"] for answer in server.generate_all(bodies)]


def test_every_answer_reports_what_is_in_force(server):
    default, exact, loose, budget, greedy, short = reports(server, [
        body(),
        body({"nsd_threshold": 0}),
        body({"nsd_threshold": 1}),
        body({"nsd_epsilon": 0.05}),
        body(temperature=0),
        body(max_new_tokens=1),
    ])
    assert [meta["nsd_threshold"] for meta in (default, exact, loose, budget, greedy)] == [0.9, 0, 1, 0.9, 0]
    assert default["nsd_rescued"] > 0 and loose["nsd_rescued"] > 0 and default["nsd_tv_bound"] > 0
    assert default["nsd_gated_nodes"] >= default["nsd_rescued"] and default["nsd_epsilon"] is None
    for meta in (exact, greedy, short):
        assert (meta["nsd_rescued"], meta["nsd_tv_bound"], meta["nsd_agreement_bound"]) == (0, 0, 1)
    assert budget["nsd_epsilon"] == pytest.approx(0.05)
    assert 0 < budget["nsd_tv_bound"] <= 0.05 * budget["spec_verify_ct"] * 4 + 1e-6
    assert budget["nsd_agreement_bound"] == pytest.approx(0.95**40)


def test_requests_in_one_batch_keep_their_own_options_and_leave_nothing_behind(server):
    mixed = [body({"nsd_threshold": (i % 2) * 1.0}) for i in range(16)]
    for i, meta in enumerate(reports(server, mixed)):
        assert meta["nsd_threshold"] == i % 2
        assert (meta["nsd_rescued"] > 0) == bool(i % 2)
    assert [meta["nsd_threshold"] for meta in reports(server, [body()] * 4)] == [0.9] * 4


def test_a_bad_option_is_refused_alone(server):
    bad = {"nsd_threshold": 2}, {"nsd_treshold": 0.5}, {"nsd_epsilon": "x"}, {"nsd_scope": "none"}, [1]
    for custom in bad:
        response = server.post("/generate", **body(custom))
        assert response.status_code == 400 and "custom_params" in response.text, response.text
    response = server.post("/v1/completions", model="m", prompt="hello", max_tokens=4, custom_params={"nsd_threshold": 2})
    assert response.status_code == 400 and "nsd_threshold accepts a number from 0 to 1" in response.text
    assert reports(server, [body()])[0]["nsd_threshold"] == 0.9


def test_streamed_reports_grow_to_the_whole_answers(server):
    response = requests.post(server.url + "/generate", json=body() | {"stream": True}, stream=True, timeout=60)
    lines = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith(b"data: {")]
    rescued = [line["meta_info"]["nsd_rescued"] for line in lines]
    assert len(lines) > 3 and rescued == sorted(rescued) and rescued[-1] > 0


@pytest.mark.parametrize("path, ask", [
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
])
def test_openai_answers_carry_the_report_beside_sglangs_details(server, path, ask):
    ask = ask | {"model": "m", "max_tokens": 30, "temperature": 1, "ignore_eos": True, "return_spec_tokens_details": True}
    details = server.post(path, **ask, custom_params={"nsd_threshold": 0.5}).json()["sglext"]["spec_tokens_details"]
    assert details["nsd_threshold"] == 0.5 and details["spec_verify_ct"] > 0
    text = server.post(path, **ask, stream=True).text
    assert '"nsd_rescued"' in text and '"nsd_threshold":0.9' in text.replace(": ", ":")


def test_metrics_and_the_decode_log_count_what_the_answers_report(server):
    def metrics():
        lines = requests.get(server.url + "/metrics", timeout=30).text.splitlines()
        return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("sglang:spec_nsd")}

    reports(server, [body()])
    before = metrics()
    answers = reports(server, [body()] * 4)
    after = metrics()
    for name, key in (("rescued_tokens_total", "nsd_rescued"), ("gated_nodes_total", "nsd_gated_nodes"), ("tv_bound_sum", "nsd_tv_bound")):
        name = "sglang:spec_nsd_" + name
        assert after[name] - before[name] == pytest.approx(sum(meta[key] for meta in answers), rel=1e-6)
    assert after["sglang:spec_nsd_tv_bound_count"] - before["sglang:spec_nsd_tv_bound_count"] == 4
    assert "NSD: rescued tokens: " in server.log.read_text()


def test_stop_tokens_are_never_rescued(server):
    """Every token of the vocabulary is declared a stop token that does not stop (ignore_eos): nothing may be rescued."""
    every = list(range(VOCAB))
    free, protected = reports(server, [
        body(stop_token_ids=every), body({"nsd_protect_stop": True}, stop_token_ids=every)
    ])
    assert free["nsd_rescued"] > 0 and protected["nsd_rescued"] == 0


def test_outside_the_reasoning_span_nothing_is_rescued(server):
    never = {"logit_bias": {str(START): -100, str(END): -100}}
    inside, outside = reports(server, [
        body({"nsd_scope": "thinking"}, prompt=[*PROMPT, START, 5], **never),
        body({"nsd_scope": "thinking"}, prompt=[*PROMPT, START, 5, END], **never),
    ])
    assert inside["nsd_rescued"] > 0
    assert inside["nsd_tv_bound"] > 0
    assert (outside["nsd_rescued"], outside["nsd_gated_nodes"], outside["nsd_tv_bound"]) == (0, 0, 0)
