"""Rounds in which nothing is drafted: `--speculative-adaptive` with 0 steps."""

from types import SimpleNamespace

import pytest
import torch

from nsd_sglang import verify_tree
from nsd_sglang.worker import _NSDWorker

VOCABULARY = 50


def worker(sampled: bool):
    config = SimpleNamespace(vocab_size=VOCABULARY)
    return SimpleNamespace(_sampled=sampled, target_worker=SimpleNamespace(model_config=config))


def verify_input(nodes: int):
    return SimpleNamespace(draft_probs=None, draft_token_num=nodes, retrieve_index=torch.zeros(3, nodes))


@pytest.mark.parametrize("sampled, nodes, filled", [(True, 1, True), (True, 4, False), (False, 1, False)])
def test_a_root_alone_needs_no_law(sampled, nodes, filled):
    """A tree of several nodes without a law is a fault, which SGLang names; a root alone is not."""
    given = verify_input(nodes)
    assert _NSDWorker._take_proposals(worker(sampled), given, SimpleNamespace(seq_lens=torch.zeros(3))) is None
    assert (given.draft_probs is not None) is filled
    if filled:
        assert given.draft_probs.shape == (3, 1, VOCABULARY)


def test_a_root_alone_draws_from_the_target():
    torch.manual_seed(0)
    rows = 4000
    law = torch.tensor([0.1, 0.2, 0.7])
    none = torch.full((rows, 1), -1)
    result = verify_tree(
        torch.zeros((rows, 1), dtype=torch.int64), none, none, law.expand(rows, 1, 3).contiguous(), torch.rand(rows, 1),
        torch.rand(rows), torch.full((rows,), 0.9), max_depth=1,
    )
    assert not result.num_correct_drafts.any() and not result.rescued.any() and not result.tv_bound.any()
    assert result.accept_index.flatten().tolist() == list(range(rows))
    torch.testing.assert_close(result.predict.bincount(minlength=3) / rows, law, atol=0.03, rtol=0)


def test_a_skipped_draft_leaves_an_empty_law():
    class Stock:
        def _stub_skipped_draft_extend(self, batch, batch_output):
            batch_output.next_draft_input.topk_p = torch.zeros(3, 1)

    class Worker(_NSDWorker, Stock):
        def __init__(self):
            self._sampled, self._drafting = True, SimpleNamespace(record_width=8)

    output = SimpleNamespace(next_draft_input=SimpleNamespace())
    Worker()._stub_skipped_draft_extend(None, output)
    assert output.next_draft_input.draft_probs.shape == (3, 8) and not output.next_draft_input.draft_probs.any()
