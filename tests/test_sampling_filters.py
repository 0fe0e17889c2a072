"""The law of a filtered row, against SGLang's plain sampler."""

import pytest
import torch

from nsd_sglang import sampling_filters
from nsd_sglang.platforms.cpu_sampling import top_k_renorm_prob, top_p_renorm_prob


@pytest.fixture
def rows():
    torch.manual_seed(1)
    top_ks, top_ps = torch.tensor([3, 8, 50, 20, 5, 1]), torch.tensor([0.9, 0.6, 0.7, 1.0, 0.8, 0.5])
    return torch.randn(6, 50).mul(2).softmax(-1), top_ks, top_ps


def plain_weights(probs, top_ks, top_ps, min_ps, monkeypatch):
    """What the plain sampler hands to its draw, scattered back to token order and rescaled."""
    from sglang.srt.layers import sampler

    monkeypatch.setattr(torch, "multinomial", lambda weights, num_samples: weights.argmax(-1, keepdim=True))
    _, weights, ids, _ = sampler.top_k_top_p_min_p_sampling_from_probs_torch(
        probs, top_ks, top_ps, min_ps, True, None, torch.zeros(len(probs)), return_filtered_probs=True
    )
    weights = torch.zeros_like(probs).scatter_(1, ids.long(), weights)
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("min_p", [0.0, 0.3])
def test_the_law_is_the_plain_samplers(rows, min_p, monkeypatch):
    probs, top_ks, top_ps = rows
    min_ps = torch.full((6,), min_p)
    law = sampling_filters.joint(probs, top_ks, top_ps, top_k_renorm_prob, top_p_renorm_prob)
    law = sampling_filters.min_p_(law, min_ps)
    torch.testing.assert_close(law, plain_weights(probs, top_ks, top_ps, min_ps, monkeypatch))
    # Top-p of what top-k left, as SGLang verifies, is another law for some of these rows.
    sequential = sampling_filters.min_p_(top_p_renorm_prob(top_k_renorm_prob(probs, top_ks), top_ps), min_ps)
    assert min_p > 0 or not torch.allclose(law, sequential, atol=1e-3)


def test_min_p_is_a_share_of_the_largest_probability():
    probs = torch.tensor([[0.5, 0.26, 0.24], [0.5, 0.26, 0.24]])
    law = sampling_filters.min_p_(probs, torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(law, torch.tensor([[0.5 / 0.76, 0.26 / 0.76, 0.0], [0.5, 0.26, 0.24]]))


def test_a_greedy_row_has_one_token_even_when_two_tie():
    probs = torch.tensor([[0.4, 0.1, 0.4, 0.1], [0.4, 0.1, 0.4, 0.1]])
    law = sampling_filters.greedy_(probs, torch.tensor([True, False]))
    assert law.tolist() == [[1, 0, 0, 0], pytest.approx([0.4, 0.1, 0.4, 0.1])]
