"""The glue between SGLang's verify step and the verifier."""

from types import SimpleNamespace

import pytest
import torch

from nsd_sglang.acceptance import NucleusAcceptance
from nsd_sglang.kernels.types import Proposals
from nsd_sglang.options import NSDOptions


def verify(threshold, coin, *, proposals=None, topk=1, gate="nucleus"):
    """One request, a chain of one draft (token 1) of target probability 0.3, nucleus {0, 1} at 0.8."""
    acceptance = NucleusAcceptance(NSDOptions(threshold=threshold, gate=gate))
    batch = SimpleNamespace(
        reqs=[], spec_info=SimpleNamespace(topk=topk), sampling_info=SimpleNamespace(sampling_seed=None)
    )
    outputs = dict(
        predicts=torch.zeros(2, dtype=torch.int32),
        accept_index=torch.full((1, 2), -1, dtype=torch.int32),
        accept_token_num=torch.empty(1, dtype=torch.int32),
    )
    with acceptance.step(batch, proposals):
        acceptance(
            **outputs,
            candidates=torch.tensor([[5, 1]]),
            retrive_index=torch.tensor([[0, 1]]),
            retrive_next_token=torch.tensor([[1, -1]]),
            retrive_next_sibling=torch.tensor([[-1, -1]]),
            uniform_samples=torch.tensor([[coin, 0.0]]),
            uniform_samples_for_final_sampling=torch.tensor([0.0]),
            target_probs=torch.tensor([[[0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]]),
            draft_probs=None,
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
    return tuple(tensor.tolist() for tensor in outputs.values())


ACCEPTED = ([1, 2], [[0, 1]], [1])
REJECTED = ([0, 0], [[0, -1]], [0])


@pytest.mark.parametrize(
    "threshold, coin, outcome",
    [(0.0, 0.29, ACCEPTED), (0.0, 0.31, REJECTED), (0.8, 0.31, ACCEPTED), (0.5, 0.31, REJECTED)],
)
def test_the_threshold_decides_what_the_standard_test_rejects(threshold, coin, outcome):
    assert verify(threshold, coin) == outcome


@pytest.mark.parametrize("gate, parameter, outcome", [("greedy-margin", 0.2, REJECTED), ("greedy-margin", 0.4, ACCEPTED), ("top-m", 1.0, REJECTED), ("top-m", 2.0, ACCEPTED)])
def test_a_rival_gate_decides_in_the_place_of_the_nucleus(gate, parameter, outcome):
    assert verify(parameter, 0.31, gate=gate) == outcome


def test_recorded_proposals_decide_the_standard_test():
    law = Proposals(ids=torch.tensor([[[1, 2], [0, 0]]]), probs=torch.tensor([[[0.25, 0.75], [0.0, 0.0]]]))
    assert verify(0.0, 0.99, proposals=law) == ACCEPTED  # q < p: always accepted
    unlikely = law._replace(probs=torch.tensor([[[0.75, 0.25], [0.0, 0.0]]]))
    assert verify(0.0, 0.41, proposals=unlikely) == REJECTED  # 0.3 / 0.75 = 0.4


def test_further_coins_are_new_columns_of_the_seeded_stream(monkeypatch):
    from nsd_sglang.platforms import cpu_sampling
    from sglang.kernels.ops.sampling import murmur_hash
    from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

    monkeypatch.setattr(murmur_hash, "murmur_hash32", cpu_sampling.murmur_hash32)
    nodes, seeds, lengths = 4, torch.tensor([3, 4]), torch.tensor([10, 20])
    acceptance = NucleusAcceptance(NSDOptions())
    batch = SimpleNamespace(sampling_info=SimpleNamespace(sampling_seed=seeds), seq_lens=lengths)
    candidates = torch.zeros(2, nodes).long()
    stock = _seeded_verify_coins(sampling_seed=seeds, seq_lens=lengths, draft_token_num=nodes, device="cpu")
    used = torch.cat((stock[0], stock[1][:, None]), dim=1)
    with acceptance.step(batch, None):
        for block in (1, 2):
            coins = acceptance._more_coins(candidates, block)
            assert coins.shape == (2, nodes) and torch.equal(coins, acceptance._more_coins(candidates, block))
            assert not (coins[:, :, None] == used[:, None, :]).any()
            used = torch.cat((used, coins), dim=1)


def test_unseeded_coins_differ():
    acceptance = NucleusAcceptance(NSDOptions())
    with acceptance.step(SimpleNamespace(sampling_info=SimpleNamespace(sampling_seed=None)), None):
        first, second = (acceptance._more_coins(torch.zeros(1, 8).long(), 1) for _ in range(2))
    assert (first != second).any() and (first >= 0).all() and (first < 1).all()
