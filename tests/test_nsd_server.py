"""NSD in real servers on tiny random models: greedy answers, sampling laws, acceptance."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from exact_law import chi_square_p, exact_law
from serving import CHAIN, TREE, serve
from tiny_models import write_tiny_models

PROMPTS = [[256, *(17 * i % 250 for i in range(n, n + 12))] for n in range(8)]
LAW_PROMPT = PROMPTS[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def reduced_eagle3(models, tmp_path_factory):
    """The EAGLE-3 head with a draft vocabulary of every second token of the target."""
    folder = tmp_path_factory.mktemp("reduced") / "eagle3"
    shutil.copytree(models.eagle3, folder)
    weights = load_file(folder / "model.safetensors")
    kept = torch.arange(0, weights["lm_head.weight"].shape[0], 2)
    weights["lm_head.weight"] = weights["lm_head.weight"][kept].contiguous()
    weights["d2t"] = kept - torch.arange(kept.numel())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": kept.numel()}))
    return str(folder)


@pytest.fixture(scope="module")
def mtp_target(models, tmp_path_factory):
    """The target as a Qwen2-like MiMo checkpoint (its attention biases are 0) with one multi-token-prediction layer, which
    passes the token's embedding on."""
    folder = tmp_path_factory.mktemp("mtp") / "target"
    shutil.copytree(models.target, folder)
    weights = load_file(folder / "model.safetensors")
    hidden = weights["model.norm.weight"].numel()
    for name in [name for name in weights if name.startswith("model.layers.0.")]:
        damped = 0.1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
        weights[name.replace("model.layers.0.", "model.mtp_layers.0.")] = damped * weights[name]
    for name in [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        weights[name.replace(".weight", ".bias")] = torch.zeros(weights[name].shape[0])
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{name}.weight"] = torch.ones(hidden)
    copy = torch.cat((0.1 * torch.eye(hidden), torch.eye(hidden)), dim=1)  # of the hidden state and the embedding
    weights["model.mtp_layers.0.input_proj.weight"] = copy
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    changed = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | changed))
    return str(folder)


@pytest.fixture
def start(models, tmp_path):
    def start(*args, threshold="0.95", env=None, model=models.target):
        nsd = ("--speculative-algorithm", "NSD", "--nsd-threshold", threshold)
        return serve(model, "--dtype", "float32", *nsd, *args, log=tmp_path / "server.log", env=env)

    return start


def greedy_bodies():
    parameters = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    return [{"input_ids": prompt, "sampling_params": parameters} for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain_answers(models, tmp_path_factory):
    with serve(models.target, "--dtype", "float32", log=tmp_path_factory.mktemp("plain") / "server.log") as server:
        return [server.generate(**body)["output_ids"] for body in greedy_bodies()]


def assert_greedy_identical(server, plain_answers):
    """Serial, then eight at once on what the radix cache kept, then eight at once from an empty cache."""
    serial = [server.generate(**body) for body in greedy_bodies()]
    assert [answer["output_ids"] for answer in serial] == plain_answers
    cached = server.generate_all(greedy_bodies())
    assert [answer["output_ids"] for answer in cached] == plain_answers
    assert sum(answer["meta_info"]["cached_tokens"] for answer in cached) > 0
    server.flush_cache()
    assert [answer["output_ids"] for answer in server.generate_all(greedy_bodies())] == plain_answers
    assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in serial) > 0


def sample_law(server, count, **parameters):
    """`count` answers of four tokens to one prompt, from requests of 25 answers each."""
    sampling = {"max_new_tokens": 4, "ignore_eos": True, "n": 25, **parameters}
    batches = server.generate_all([{"input_ids": LAW_PROMPT, "sampling_params": sampling}] * (count // 25), 4)
    return [tuple(answer["output_ids"]) for batch in batches for answer in batch]


def accepted_length(server, **parameters):
    """Tokens per verify call of sampled answers."""
    sampling = {"temperature": 1, "max_new_tokens": 40, "ignore_eos": True, **parameters}
    answers = server.generate_all([{"input_ids": p, "sampling_params": sampling} for p in PROMPTS * 2])
    calls = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    return sum(answer["meta_info"]["completion_tokens"] - 1 for answer in answers) / calls


def test_eagle_tree_of_top_k_proposals(start, models, plain_answers):
    draft = ("--speculative-draft-model-path", models.eagle, "--nsd-proposals", "topk", *TREE)
    with start(*draft, threshold="0") as server:
        assert chi_square_p(
            sample_law(server, 1500, top_k=3), exact_law(models.target, LAW_PROMPT, 4, top_k=3)
        ) > 1e-3
        standard = accepted_length(server)
    with start(*draft) as server:
        assert_greedy_identical(server, plain_answers)
        nucleus = accepted_length(server)
        printed = server.log.read_text()
        assert "NSD: eagle drafter, topk proposals, nucleus threshold 0.95" in printed
        assert "Overlap schedule is not implemented" not in printed
        assert server.info()["disable_overlap_schedule"] is False
    assert nucleus > standard * 1.1


def test_eagle_chain_of_top_k_proposals(start, models, plain_answers):
    with start("--speculative-draft-model-path", models.eagle, "--nsd-proposals", "topk", *CHAIN) as server:
        assert_greedy_identical(server, plain_answers)


def test_eagle_chain_of_sampled_proposals(start, models, plain_answers, tmp_path):
    draft = ("--speculative-draft-model-path", models.eagle, "--nsd-proposals", "sampled", *CHAIN)
    with start(*draft, threshold="0") as server:
        for length, parameters in ((4, {"top_k": 3}), (3, {"top_p": 0.9, "temperature": 0.7})):
            law = exact_law(models.target, LAW_PROMPT, length, **parameters)
            answers = [answer[:length] for answer in sample_law(server, 1500, **parameters)]
            assert chi_square_p(answers, law) > 1e-3
        standard = accepted_length(server)
    with start(*draft, "--nsd-trace", tmp_path / "trace.jsonl") as server:
        assert_greedy_identical(server, plain_answers)
        assert accepted_length(server) > standard * 1.1
        sampling = {"temperature": 1, "max_new_tokens": 120, "ignore_eos": True}
        answers = server.generate_all([{"input_ids": prompt, "sampling_params": sampling} for prompt in PROMPTS])
    assert_recorded(answers, tmp_path / "trace.jsonl")


def assert_recorded(answers, path):
    """Every verify step of every answer is in the trace, with what it emitted; rescues come as often as E_S says."""
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["options"]["proposals"] == "sampled"
    for answer in answers:
        meta = answer["meta_info"]
        own = [line["nodes"] for line in lines if line["rid"] == meta["id"]]
        assert len(own) >= meta["spec_verify_ct"]  # overlap scheduling runs one step more than it needs
        at = 0
        for nodes in own[: meta["spec_verify_ct"]]:
            emitted = [node["token"] for node in nodes]
            assert emitted == answer["output_ids"][at + 1 : at + 1 + len(emitted)] or at + len(emitted) >= 119
            at += len(emitted) + (nodes[-1]["kept"] is not None)  # the bonus token follows a leaf
    nodes = [node for line in lines for node in line["nodes"]]
    rescued, expected = sum(node["outcome"] == "rescued" for node in nodes), sum(node["e_s"] for node in nodes)
    assert rescued > 50 and abs(rescued - expected) < 4 * sum(node["e_s"] * (1 - node["e_s"]) for node in nodes) ** 0.5


def assert_hidden_states_are_those_of_a_prefill(server):
    """One row a token, as a prefill of prompt and answer computes them."""
    sampling = {"temperature": 1, "max_new_tokens": 21, "ignore_eos": True}
    bodies = [{"input_ids": p, "sampling_params": sampling, "return_hidden_states": True} for p in PROMPTS[:4]]
    for prompt, answer in zip(PROMPTS, server.generate_all(bodies)):
        rows = [answer["meta_info"]["hidden_states"][0][-1], *answer["meta_info"]["hidden_states"][1:]]
        assert len(rows) == 21
        server.flush_cache()
        again = {"input_ids": prompt + answer["output_ids"], "sampling_params": {"max_new_tokens": 1}}
        block = server.generate(**again, return_hidden_states=True)["meta_info"]["hidden_states"][0]
        assert torch.allclose(torch.tensor(rows), torch.tensor(block[len(prompt) - 1 : -1]), atol=1e-3)


def test_standalone_tree_of_sampled_proposals(start, models, plain_answers):
    draft = ("--speculative-draft-model-path", models.standalone, "--nsd-proposals", "sampled", *TREE)
    with start(*draft, "--enable-return-hidden-states", threshold="0") as server:
        assert_hidden_states_are_those_of_a_prefill(server)
        assert_greedy_identical(server, plain_answers)
        law = exact_law(models.target, LAW_PROMPT, 4, top_k=3)
        assert chi_square_p(sample_law(server, 1500, top_k=3), law) > 1e-3


def test_a_target_with_mtp_layers_drafts_for_itself(start, models, mtp_target, plain_answers):
    with start("--nsd-proposals", "sampled", *CHAIN, threshold="0", model=mtp_target) as server:
        assert "NSD: nextn drafter" in server.log.read_text()
        assert_greedy_identical(server, plain_answers)
        law = exact_law(models.target, LAW_PROMPT, 4, top_k=3)
        assert chi_square_p(sample_law(server, 1500, top_k=3), law) > 1e-3


def test_roots_follow_their_requests_under_pressure(start, models, plain_answers):
    """Chunked prefill, prefix reuse, requests that end in waves, few KV slots and retraction: every root keeps the law its
    children were drawn from, so greedy answers stay exact and sampled ones on their law."""
    tight = ("--chunked-prefill-size", "8", "--max-total-tokens", "300", "--max-running-requests", "8")
    draft = ("--speculative-draft-model-path", models.eagle, "--nsd-proposals", "sampled", *TREE, *tight)
    # Few slots alone seldom retract: the scheduler holds requests back before it comes to that.
    retract = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"}
    with start(*draft, threshold="0", env=retract) as server:
        long = {"temperature": 1, "max_new_tokens": 120, "ignore_eos": True}
        bodies = []
        for i in range(60):
            bodies.append({"input_ids": LAW_PROMPT, "sampling_params": {"top_k": 3, "max_new_tokens": 4 + i % 3, "n": 10}})
            bodies.append({"input_ids": PROMPTS[i % 8] + PROMPTS[(i + 1) % 8], "sampling_params": long})
            bodies.append(greedy_bodies()[i % 8])
        for body in bodies:
            body["sampling_params"] = body["sampling_params"] | {"ignore_eos": True}
        answers = server.generate_all(bodies, 12)
        for i in range(60):
            assert answers[3 * i + 2]["output_ids"] == plain_answers[i % 8]
        assert sum(answer["meta_info"]["num_retractions"] for answer in answers[1::3] + answers[2::3]) > 0
        sampled = [tuple(answer["output_ids"][:4]) for batch in answers[0::3] for answer in batch]
        assert chi_square_p(sampled, exact_law(models.target, LAW_PROMPT, 4, top_k=3)) > 1e-3


def test_a_tree_near_the_context_limit(start, models):
    """The reserve of a tree is longer than the headroom that SGLang gives a row of KV slots."""
    tree = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "3", "--speculative-num-draft-tokens", "10")
    with start("--speculative-draft-model-path", models.standalone, *tree) as server:
        for length in range(997, 1018, 4):
            prompt = [(7 * i + 2) % 250 for i in range(length)]
            sampling = {"temperature": 1, "max_new_tokens": 1022 - length, "ignore_eos": True}
            answer = server.generate(input_ids=prompt, sampling_params=sampling)
            assert len(answer["output_ids"]) == 1022 - length


def test_a_standalone_draft_conditions_on_the_whole_prefix(start, models):
    """A draft that is the target proposes from the target's own law, and everything is accepted: after a prefill, a prefill
    in chunks, and a prefix from the radix cache. SGLang's shift, which loses the first token, accepts less than half."""
    everything = ("--nsd-proposals", "sampled", "--nsd-candidates", "320", "--chunked-prefill-size", "8")
    with start("--speculative-draft-model-path", models.target + "/.", *everything, *CHAIN, threshold="0") as server:
        sampling = {"temperature": 1, "max_new_tokens": 30, "ignore_eos": True}
        for _ in range(2):
            answers = server.generate_all([{"input_ids": prompt, "sampling_params": sampling} for prompt in PROMPTS], 4)
            accepted = sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers)
            drafted = sum(answer["meta_info"]["spec_num_proposed_drafts"] for answer in answers)
            assert accepted > 0.98 * drafted
        assert sum(answer["meta_info"]["cached_tokens"] for answer in answers) > 0


def test_eagle3_chain_with_a_reduced_vocabulary(start, models, reduced_eagle3, plain_answers):
    draft = ("--speculative-draft-model-path", reduced_eagle3, "--nsd-proposals", "sampled", *CHAIN)
    with start(*draft, threshold="0") as server:
        assert_greedy_identical(server, plain_answers)
        law = exact_law(models.target, LAW_PROMPT, 4, top_k=3)
        assert chi_square_p(sample_law(server, 1500, top_k=3), law) > 1e-3


def test_the_triton_kernel_inside_the_server(start, models, plain_answers):
    """Greedy and sampled requests in one batch, so that the greedy ones go through the kernel as well."""
    draft = ("--speculative-draft-model-path", models.standalone, "--nsd-proposals", "topk", *CHAIN)
    with start(*draft, "--nsd-verify-backend", "triton", env={"TRITON_INTERPRET": "1"}) as server:
        sampled = {"input_ids": PROMPTS[1], "sampling_params": {"temperature": 1, "max_new_tokens": 40, "ignore_eos": True}}
        answers = server.generate_all([sampled, *greedy_bodies()[:3], sampled, *greedy_bodies()[3:6]])
        greedy = answers[1:4] + answers[5:]
        assert [answer["output_ids"] for answer in greedy] == plain_answers[:6]
        assert sum(answer["meta_info"]["spec_num_correct_drafts"] for answer in answers) > 0
