"""Sampled proposals: the recorded law, the draw, and the joint law of what is emitted at theta = 0."""

import pytest
import torch
from scipy.stats import chi2

import toy_rounds
from nsd_sglang.drafting import SampledDrafting

SHAPES = {"chain": {"topk": 1, "steps": 3, "nodes": 4}, "tree": {"topk": 2, "steps": 3, "nodes": 6}}
VOCABULARY = 5


def markov(seed: int, concentration: float = 0.7) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.distributions.Dirichlet(torch.full((VOCABULARY,), concentration)).sample((VOCABULARY,))


def joint_p_value(shape: dict, seed: int, rows: int = 12000, drafting_class=SampledDrafting, candidates: int = 4) -> float:
    """p value of the chi-square between three emitted tokens and the target's exact joint law."""
    target, draft = markov(2 * seed), markov(2 * seed + 1)
    torch.manual_seed(1000 + seed)
    drafting = drafting_class(topk=shape["topk"], candidates=candidates)
    start = torch.zeros(rows, dtype=torch.long)
    tokens, _ = toy_rounds.run(
        drafting, draft, target, start, steps=shape["steps"], nodes=shape["nodes"], length=3
    )
    exact = torch.einsum("a,ab,bc->abc", target[0], target, target).flatten().double()
    counts = torch.bincount(tokens @ torch.tensor([VOCABULARY**2, VOCABULARY, 1]), minlength=exact.numel()).double()
    expected = exact * rows
    small = expected < 5  # pooled into one cell
    counts = torch.cat((counts[~small], counts[small].sum()[None]))
    expected = torch.cat((expected[~small], expected[small].sum()[None]))
    keep = expected > 0
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum().item()
    return chi2.sf(statistic, int(keep.sum()) - 1)


class ScoredByTheDrawnToken(SampledDrafting):
    """What must not be done: rank a child by the probability of the token that was drawn."""

    def draw(self, law, **seeds):
        _, tokens = super().draw(law, **seeds)
        match = law[:, 1].unsqueeze(1) == tokens.unsqueeze(2)
        return (law[:, 0].unsqueeze(1) * match).sum(-1), tokens


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_three_tokens_follow_the_target_at_threshold_zero(shape, seed):
    assert joint_p_value(SHAPES[shape], seed) > 1e-3


def test_scores_of_drawn_tokens_would_be_caught():
    assert min(joint_p_value(SHAPES["tree"], seed, drafting_class=ScoredByTheDrawnToken) for seed in range(2)) < 1e-6


def test_a_threshold_lengthens_rounds():
    lengths = []
    for threshold in (0.0, 0.8):
        torch.manual_seed(0)
        drafting = SampledDrafting(topk=2, candidates=4)
        start = torch.zeros(500, dtype=torch.long)
        lengths.append(
            toy_rounds.run(drafting, markov(1), markov(0), start, steps=3, nodes=6, length=3, threshold=threshold)[1]
        )
    assert lengths[1] > lengths[0] + 0.2


def test_the_law_is_the_softmax_over_the_kept_candidates():
    torch.manual_seed(0)
    logits = torch.randn(2, 50)
    temperatures = torch.tensor([[1.0], [0.5]])
    law = SampledDrafting(topk=1, candidates=7).law(logits, temperatures, torch.tensor([1 << 30, 3]))
    for row, kept in enumerate((7, 3)):
        full = torch.softmax(logits[row].double() / temperatures[row].double(), dim=-1)
        values, ids = full.topk(kept)
        assert law[row, 1, :kept].long().tolist() == ids.tolist()
        torch.testing.assert_close(law[row, 0, :kept].double(), values / values.sum(), atol=1e-6, rtol=0)
        assert law[row, 0, kept:].eq(0).all()


def test_a_greedy_request_proposes_its_argmax_with_certainty():
    logits = torch.randn(1, 20)
    drafting = SampledDrafting(topk=3, candidates=8)
    law = drafting.law(logits, torch.ones(1, 1), torch.tensor([1]))
    assert law[0, 0].tolist() == [1.0] + [0.0] * 7
    for _ in range(20):
        _, tokens = drafting.draw(law, sampling_seed=None, positions=None, draft_step=0)
        assert tokens.tolist() == [logits[0].topk(3).indices.tolist()]


def test_fewer_tokens_than_candidates_are_padded_outside_the_vocabulary():
    law = SampledDrafting(topk=2, candidates=6).law(torch.randn(1, 4), torch.ones(1, 1), None)
    assert law.shape == (1, 2, 6)
    assert law[0, 0, 4:].tolist() == [0.0, 0.0] and law[0, 1, 4:].tolist() == [-1.0, -1.0]


def test_draws_are_without_replacement_and_follow_the_law():
    torch.manual_seed(0)
    probs = torch.tensor([0.6, 0.3, 0.1])
    law = torch.stack((probs, torch.tensor([5.0, 6.0, 7.0]))).repeat(20000, 1, 1)
    _, tokens = SampledDrafting(topk=2, candidates=3).draw(law, sampling_seed=None, positions=None, draft_step=0)
    first = torch.bincount(tokens[:, 0] - 5, minlength=3) / 20000
    torch.testing.assert_close(first, probs, atol=0.015, rtol=0)
    assert (tokens[:, 0] != tokens[:, 1]).all()
    second = tokens[tokens[:, 0] == 5][:, 1]
    assert abs((second == 6).float().mean().item() - 0.75) < 0.02


@pytest.mark.parametrize("topk", [1, 2, 4])
def test_scores_never_tie_along_a_path_or_among_siblings(topk):
    law = torch.zeros(1, 2, 8)
    law[0, 0, 0] = 1.0  # a certain draft: every raw order statistic is 1 or 0
    scores, _ = SampledDrafting(topk=topk, candidates=8).draw(law, sampling_seed=None, positions=None, draft_step=0)
    assert (scores < 1).all() and (scores > 0).all()
    assert (scores[:, 1:] < scores[:, :-1]).all()
    assert scores[0, -1].item() ** 12 > 0  # in float64; the deepest path stays representable in float32 as well
    assert torch.full((12,), scores[0, -1].item()).prod() > 0


def test_seeded_draws_do_not_depend_on_the_batch():
    pytest.importorskip("sglang")
    from nsd_sglang.platforms import cpu_sampling
    from sglang.kernels.ops.sampling import murmur_hash

    original, murmur_hash.murmur_hash32 = murmur_hash.murmur_hash32, cpu_sampling.murmur_hash32
    try:
        drafting = SampledDrafting(topk=2, candidates=16)
        law = drafting.law(torch.randn(6, 40), torch.ones(3, 1), None)  # 3 requests, 2 rows each
        seed, positions = torch.tensor([11, 12, 11]), torch.tensor([4, 4, 9, 9, 4, 4])
        _, together = drafting.draw(law, sampling_seed=seed, positions=positions, draft_step=1)
        _, again = drafting.draw(law, sampling_seed=seed, positions=positions, draft_step=1)
        _, alone = drafting.draw(law[2:4], sampling_seed=seed[1:2], positions=positions[2:4], draft_step=1)
        assert together.tolist() == again.tolist()
        assert together[2:4].tolist() == alone.tolist()
        same = law[:1].repeat(2, 1, 1)  # two rows of one request must not share their variates
        keys = drafting._exponentials(same[:, 0], seed[:1], positions[:2], 1)
        assert (keys[0] != keys[1]).all()
    finally:
        murmur_hash.murmur_hash32 = original


def test_each_node_gets_the_law_its_children_were_drawn_from():
    torch.manual_seed(3)
    drafting = SampledDrafting(topk=2, candidates=4)
    draft = markov(1)
    last = torch.arange(VOCABULARY)
    candidates, next_token, next_sibling, proposals = toy_rounds.draft_round(drafting, draft, last, steps=3, nodes=6)
    parents = 0
    for b in range(VOCABULARY):
        for node in range(6):
            if next_token[b, node] < 0:
                continue
            parents += 1
            values, ids = draft[candidates[b, node]].topk(4)
            assert proposals.ids[b, node].tolist() == ids.tolist()
            torch.testing.assert_close(proposals.probs[b, node], values / values.sum(), atol=1e-6, rtol=0)
            child, drawn = next_token[b, node].item(), []
            while child >= 0:
                drawn.append(candidates[b, child].item())
                child = next_sibling[b, child].item()
            assert set(drawn) <= set(ids.tolist()) and len(set(drawn)) == len(drawn)
    assert parents > VOCABULARY  # pruning left more than the roots expanded
