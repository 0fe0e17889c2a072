"""What a real server without speculation says of an answer is what transformers computes from the same weights."""

import pytest
import torch
from serving import serve
from tiny_models import VOCAB, write_tiny_models
from transformers import AutoModelForCausalLM

from nsd_sglang.benchmarks.likelihood import Transform, score

PROMPT = [5, 17, 99, 23, 42, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_models(tmp_path_factory.mktemp("models")).target


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with serve(model, "--dtype", "float32", log=tmp_path_factory.mktemp("logs") / "plain.log") as server:
        yield server


def reference(model, output_ids, temperature):
    """Sums of log p of the tokens and of the entropies, from transformers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = network(torch.tensor([PROMPT + output_ids])).logits[0, len(PROMPT) - 1 : -1].double()
    logs = torch.log_softmax(logits / temperature, dim=-1)
    return logs[torch.arange(len(output_ids)), output_ids].sum().item(), -(logs.exp() * logs).sum().item()


def test_scores_are_the_models(server, model):
    sampling = {"temperature": 1.0, "max_new_tokens": 24, "ignore_eos": True}
    # Asked twice: the second time the prompt and its answer lie in the radix cache.
    for _ in range(2):
        answer = server.generate(input_ids=PROMPT, sampling_params=sampling)["output_ids"]
        assert len(answer) == 24
        for transform, top in ((Transform(), VOCAB), (Transform(), 40), (Transform(0.6), VOCAB), (Transform(1.5), 100)):
            found = score(lambda body: server.generate(**body), PROMPT, answer, transform, VOCAB, top)
            logprob, entropy = reference(model, answer, transform.temperature)
            assert found.logprob == pytest.approx(logprob, abs=found.logprob_error + 1e-2)
            assert found.entropy == pytest.approx(entropy, abs=found.entropy_error + 1e-2)
            assert top < VOCAB or found.entropy_error < 1e-3
