"""Names of SGLang that are rebound in the process of an NSD worker."""

import dataclasses
from types import ModuleType, SimpleNamespace

import pytest
import torch
from sglang.srt.speculative import eagle_draft_cuda_graph_runner, eagle_utils, eagle_worker_v2

from nsd_sglang.drafting import SampledDrafting
from nsd_sglang.kernels.types import Proposals
from nsd_sglang.patches import draft_proposals, verify_kernels
from nsd_sglang.patches.assign import assign

DRAFTING = SampledDrafting(topk=2, candidates=4)


@pytest.fixture
def restored():
    modules = (eagle_draft_cuda_graph_runner, eagle_utils, eagle_worker_v2)
    before = [dict(vars(module)) for module in modules]
    yield
    for module, names in zip(modules, before):
        vars(module).update(names)


@pytest.fixture
def installed(restored):
    draft_proposals.install(DRAFTING)


def test_a_name_that_is_gone_is_an_error_and_not_a_new_name():
    module = ModuleType("somewhere")
    module.present = 1
    assert assign(module, "present", 2) == 1 and module.present == 2
    with pytest.raises(AttributeError, match="somewhere.absent is gone; run `nsd-sglang check`"):
        assign(module, "absent", 2)


def test_both_sampling_kernels_are_replaced(restored):
    def acceptance(**_):
        return None

    verify_kernels.install(acceptance)
    assert eagle_utils.tree_speculative_sampling_target_only is acceptance
    assert eagle_utils.chain_speculative_sampling_triton is acceptance


def test_the_root_is_drawn_from_its_record_after_a_prefill(installed):
    torch.manual_seed(0)
    info = SimpleNamespace(temperatures=torch.ones(3, 1), top_ks=torch.full((3,), 1 << 30))
    logits = torch.randn(3, 30)
    record = eagle_worker_v2.renorm_draft_probs(logits, info, True)
    assert record.shape == (3, DRAFTING.record_width)
    scores, tokens = eagle_worker_v2.fast_sample(record, num_samples=1, sampling_seed=None, positions=torch.zeros(3))
    assert scores.shape == tokens.shape == (3, 2)
    assert (tokens.unsqueeze(2) == logits.topk(4).indices.unsqueeze(1)).any(2).all()


def test_an_all_greedy_batch_keeps_top_k_drafting(installed):
    probs = eagle_worker_v2.renorm_draft_probs(torch.randn(2, 30), None, False)
    assert probs.shape == (2, 30)


def test_a_tree_step_records_one_row_a_request(installed):
    record, scores, tokens = eagle_worker_v2.sample_draft_proposal(
        torch.randn(6, 30), torch.ones(3, 1), None, positions=torch.zeros(6), draft_step=1
    )
    assert record.shape == (3, DRAFTING.record_width)
    assert scores.shape == tokens.shape == (6, 2)


def test_the_verify_input_carries_the_proposals(restored, monkeypatch):
    calls = []

    def stock(*args, **kwargs):
        calls.append(args)
        return SimpleNamespace(draft_probs=None)

    monkeypatch.setattr(eagle_worker_v2, "build_eagle_verify_input", stock)
    draft_proposals.install(DRAFTING)
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False))
    records = torch.zeros(1, 2, DRAFTING.record_width)
    parents, kept = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2]])
    built = eagle_worker_v2.build_eagle_verify_input(batch, None, parents, kept, None, records, topk=2)
    assert isinstance(built.draft_probs, Proposals) and built.draft_probs.ids.shape == (1, 4, 4)
    assert calls[0][5] is None  # SGLang's own field stays unset
    assert eagle_worker_v2.build_eagle_verify_input(batch, None, parents, kept, None, None).draft_probs is None


def test_the_graph_buffer_is_as_wide_as_a_record(installed):
    """Graph replay copies the root's record into this buffer, which SGLang makes as wide as the vocabulary."""
    buffers = eagle_draft_cuda_graph_runner.EagleDraftInputBuffers
    fields = {field.name: None for field in dataclasses.fields(buffers)}
    made = buffers(**(fields | {"draft_probs": torch.ones(5, 1000)}))
    assert made.draft_probs.shape == (5, DRAFTING.record_width) and made.draft_probs.eq(0).all()
    made.draft_probs[:3].copy_(torch.ones(3, DRAFTING.record_width))
    assert buffers(**fields).draft_probs is None
