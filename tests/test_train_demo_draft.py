"""The demo's draft trainer: numerics against transformers and a token-by-token drafting loop, export, held-out prompts."""

import email
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import demo_draft_data as data  # noqa: E402
import demo_draft_models as models  # noqa: E402
import train_demo_draft as trainer  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "tie_word_embeddings": True, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "max_position_embeddings": 512,
}  # fmt: skip
WIDTH = CONFIG["hidden_size"]


@pytest.fixture(autouse=True)
def _seed(monkeypatch):
    torch.manual_seed(0)
    # Reading one package of the standard library is quicker than reading all.
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: Path(email.__file__).parent)


@pytest.fixture
def target(tmp_path):
    """A random target as transformers writes it: (checkpoint, Decoder in float32, transformers' model)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    reference = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.mul_(1 + torch.rand_like(parameter)) if "norm" in name else parameter.mul_(4)
    reference.save_pretrained(tmp_path / "target")
    (tmp_path / "target/config.json").write_text(json.dumps(CONFIG))
    return models.Decoder.load(tmp_path / "target", torch.float32), reference


def random_head(kind):
    head = models.Head(CONFIG, kind, torch.arange(0, 300, 3) if kind == models.EAGLE3 else None)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return head


def answers_of(target, rows=12, prompt=6):
    prompts = [torch.randint(3, 300, (prompt + row % 3,)).tolist() for row in range(rows)]
    part = data.answer(target, prompts, end=2, generator=torch.Generator().manual_seed(0))
    starts = torch.cat([torch.zeros(1, dtype=torch.long), part["sizes"].cumsum(0)])
    return prompts, data.Answers(part["tokens"], part["features"], starts, part["prompts"])


def test_target_and_its_captured_states_are_those_of_transformers(target):
    ours, reference = target
    tokens = torch.randint(0, 300, (2, 9))
    with torch.no_grad():
        last, aux = ours(tokens)
        states = reference(tokens, output_hidden_states=True).hidden_states
    torch.testing.assert_close(last, states[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(aux, torch.cat([states[2], states[4], states[5]], -1), rtol=1e-4, atol=1e-4)


def test_sampled_answers_carry_their_prompts_and_the_states_of_a_plain_forward(target, monkeypatch):
    monkeypatch.setattr(data, "ANSWER_TOKENS", 12)
    ours, _ = target
    prompts, answers = answers_of(ours)
    for row, prompt in enumerate(prompts):
        tokens, features, answered = answers.batch([row])
        assert tokens[0, : len(prompt)].tolist() == prompt
        assert 2 not in tokens[0, len(prompt) :]
        assert answered[0].tolist() == [0] * (len(prompt) - 1) + [1] * (tokens.shape[1] - len(prompt) + 1)
        last, aux = ours(tokens)
        torch.testing.assert_close(features.float(), torch.cat([aux, last], -1), rtol=0.02, atol=0.02)


def drafted(head, features, embeds, length, steps):
    """Drafting as a server does it after ``length`` known entries, one full forward without masks per step."""
    layer, keys, state = head.layers[0], None, None

    def run(x, embed, position):
        nonlocal keys
        attention = layer.self_attn

        def attend(q, k, v):
            nonlocal keys
            past_k, past_v = keys if keys else (k[:, :, :0], v[:, :, :0])
            keys = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
            k, v = (part.repeat_interleave(attention.heads // attention.kv_heads, 1) for part in keys)
            return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v

        return layer(x, torch.tensor([[position]]), attend, embed)

    for position in range(length + steps - 1):
        embed = embeds[:, position : position + 1]
        known = features[:, position : position + 1] if position < length else state
        if head.kind == models.EAGLE:
            state = run(head.fc(torch.cat([embed, known], -1)), embed, position)
        else:
            state = run(head.fc(head.normed(known)) if position < length else known, embed, position)
    return state if head.kind == models.EAGLE else head.norm(state)


@pytest.mark.parametrize("kind", [models.EAGLE, models.EAGLE3])
@torch.no_grad()
def test_draft_steps_equal_token_by_token_drafting(kind):
    head = random_head(kind)
    features = torch.randn(2, 7, WIDTH * (1 if kind == models.EAGLE else 3))
    embeds = torch.randn(2, 9, WIDTH)
    states = head(features, embeds, 3)
    for entry in (0, 3, 6):
        for step in (1, 2, 3):
            want = drafted(head, features, embeds, entry + 1, step)[:, 0]
            torch.testing.assert_close(states[step - 1][:, entry], want, rtol=1e-4, atol=1e-4)


def test_divergence_and_its_gradient():
    states, weight = torch.randn(5, 8).bfloat16().double(), torch.randn(11, 8).bfloat16().double()
    p, offset = torch.rand(5, 11).softmax(-1), torch.rand(11)
    exact = [tensor.clone().requires_grad_() for tensor in (states, weight)]
    q = (exact[0] @ exact[1].T + offset).log_softmax(-1)
    want = (-(p * q).sum(-1) + 1 - torch.minimum(p.double(), q.exp()).sum(-1)).mean()
    want.backward()
    got_inputs = [tensor.float().requires_grad_() for tensor in (states, weight)]
    got, _ = trainer.Divergence.apply(*got_inputs, p, offset)
    got.backward()
    assert got.item() == pytest.approx(want.item(), abs=0.02)
    for ours, reference in zip(got_inputs, exact):
        torch.testing.assert_close(ours.grad, reference.grad.float(), rtol=0.05, atol=5e-3)


@pytest.mark.parametrize("kind", [models.EAGLE, models.EAGLE3, models.STANDALONE])
def test_training_raises_the_overlap_and_exports_what_sglang_loads(kind, target, tmp_path, monkeypatch):
    for name, value in {"DRAFT_TOKENS": 100, "FREQUENT": 80, "SAMPLED": 40}.items():
        monkeypatch.setattr(trainer, name, value)
    monkeypatch.setitem(trainer.STANDALONE_SHAPE, "hidden_size", 24)
    monkeypatch.setattr(data, "ANSWER_TOKENS", 12)
    ours, _ = target
    ours.bfloat16()
    _, answers = answers_of(ours)
    draft = trainer.new_draft(kind, ours, answers)
    before = trainer.overlaps(draft, kind, ours, answers)
    assert trainer.train_draft(draft, kind, ours, answers, seed=0, minutes=1, steps=40) == 40
    after = trainer.overlaps(draft, kind, ours, answers)
    assert len(after) == (1 if kind == models.STANDALONE else 3)
    assert after[0] > before[0]

    trainer.export(draft, kind, ours, tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [trainer.ARCHITECTURES[kind]]
    weights = load_file(tmp_path / "out/model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    floats = {tensor.dtype for name, tensor in weights.items() if name not in ("d2t", "t2d")}
    assert floats == {torch.bfloat16}
    if kind == models.STANDALONE:
        from transformers import LlamaForCausalLM

        loaded = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
        tokens = torch.randint(0, 300, (1, 7))
        with torch.no_grad():
            last, _ = models.Decoder.load(tmp_path / "out", torch.float32)(tokens)
            torch.testing.assert_close(last @ loaded.lm_head.weight.T, loaded(tokens).logits, rtol=1e-3, atol=1e-3)
        return
    assert config["num_hidden_layers"] == 1 and config["tie_word_embeddings"] is False
    layer = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
             "mlp.down_proj", "post_attention_layernorm"}  # fmt: skip
    if kind == models.EAGLE:
        assert set(shapes) == {"fc.weight", "fc.bias"} | {f"layers.0.{name}.weight" for name in layer}
        assert shapes["fc.weight"] == (WIDTH, 2 * WIDTH)
    else:
        layer |= {"input_layernorm", "hidden_norm"}
        own = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} | {f"fc_norm.{index}.weight" for index in range(3)}
        assert set(shapes) == own | {f"midlayer.{name}.weight" for name in layer}
        assert shapes["fc.weight"] == (WIDTH, 3 * WIDTH)
        assert shapes["midlayer.self_attn.q_proj.weight"] == (32, 2 * WIDTH)
        assert shapes["lm_head.weight"] == (config["draft_vocab_size"], WIDTH) == (100, WIDTH)
        ids = weights["d2t"] + torch.arange(100)
        assert weights["t2d"].nonzero().flatten().tolist() == ids.tolist()
    again = models.Head.load(tmp_path / "out")
    assert trainer.overlaps(again, kind, ours, answers) == pytest.approx(after, abs=0.02)


def test_draft_vocabulary_takes_the_most_frequent_tokens():
    answers = data.Answers(torch.tensor([7, 7, 5, 5, 5, 9, 1]), torch.zeros(7, 4), torch.tensor([0, 7]), torch.tensor([2]))
    assert trainer.frequent_tokens(answers, 3, 12).tolist() == [1, 5, 7]


def test_requests_leave_humaneval_out():
    names = {"get_payload", "get_all", "as_string"}
    requests = data.build_requests(400, random.Random(0), set())
    assert [text for text in requests for name in names if f"def {name}(" in text]
    requests = data.build_requests(400, random.Random(0), names)
    assert len(set(requests)) == 400
    assert not [text for text in requests for name in names if f"def {name}(" in text]
    assert requests == data.build_requests(400, random.Random(0), names)


def test_humaneval_is_a_split_of_its_own():
    class Tokenizer:
        def apply_chat_template(self, messages, **_):
            return [ord(letter) for letter in messages[0]["content"]][:150]

    problem = 'def has_close_elements(numbers):\n    """Check the list."""\n'
    prompts = data.prompts_by_split(50, 0, Tokenizer(), [problem])
    (measured,) = prompts["humaneval"]
    assert len(prompts["train"]) == 50 and len(prompts["chat"]) == data.HELD_OUT_ROWS
    assert measured not in prompts["train"] + prompts["chat"]
    assert not [row for row in prompts["train"] if row in prompts["chat"]]


def test_sampling_is_kept_on_disk_and_repeats(target, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "ANSWER_TOKENS", 4)
    prompts = [[5, 6, 7], [8, 9]]
    for name in ("a.safetensors", "b.safetensors"):
        data.write_answers(tmp_path / name, target[0], prompts, 2, 3)
    first, second = (load_file(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    save_file({"kept": torch.ones(1)}, tmp_path / "a.safetensors")
    data.write_answers(tmp_path / "a.safetensors", target[0], prompts, 2, 3)
    assert "kept" in load_file(tmp_path / "a.safetensors")
