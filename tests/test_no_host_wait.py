"""Nothing on the decode path waits for the device: no op that would synchronise a GPU runs in draft or verification."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nsd_sglang.acceptance import NucleusAcceptance
from nsd_sglang.drafting import SampledDrafting
from nsd_sglang.kernels.types import Proposals
from nsd_sglang.options import NSDOptions

# Ops that read a value on the host, or whose output shape depends on values.
WAITING = ("_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "bincount", "equal", "is_nonzero")


# Methods that copy to the host without a dispatched op when the tensor is there already.
COPYING = ("tolist", "cpu", "numpy")


class NoHostWait(TorchDispatchMode):
    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        for name in COPYING:
            self._patch.setattr(torch.Tensor, name, self._refuse(name))
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.undo()
        return super().__exit__(*error)

    @staticmethod
    def _refuse(name):
        def refuse(*args, **kwargs):
            raise AssertionError(f"Tensor.{name} waits for the device")

        return refuse

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").split(".")[0]
        assert name not in WAITING, f"{function} waits for the device"
        if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple)):
            masks = [i for i in args[1] if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{function} with a boolean index waits for the device"
        if name == "repeat_interleave":
            assert kwargs.get("output_size") is not None, f"{function} without an output size waits for the device"
        return function(*args, **(kwargs or {}))


@pytest.fixture
def torch_hash(monkeypatch):
    from nsd_sglang.platforms import cpu_sampling
    from sglang.kernels.ops.sampling import murmur_hash

    monkeypatch.setattr(murmur_hash, "murmur_hash32", cpu_sampling.murmur_hash32)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
    ],
)
def test_the_guard_catches(op):
    with pytest.raises(AssertionError), NoHostWait():
        op(torch.randn(3))


@pytest.mark.parametrize("topk, steps", [(1, 3), (3, 3), (3, 1)])
@pytest.mark.parametrize("seeded", [False, True])
def test_drafting(torch_hash, topk, steps, seeded):
    batch, vocabulary, nodes = 4, 100, 1 + min(steps * topk, 6)
    drafting = SampledDrafting(topk=topk, candidates=8)
    temperatures, top_ks = torch.full((batch, 1), 0.7), torch.tensor([1, 5, 1 << 30, 1 << 30])
    seed = torch.arange(batch) if seeded else None
    logits = [torch.randn(batch if step == 0 else batch * topk, vocabulary) for step in range(steps)]
    rows = [torch.arange(len(row)) for row in logits]
    parents = torch.arange(-1, (steps - 1) * topk).repeat(batch, 1) if steps > 1 else torch.empty(batch, 0).long()
    kept = torch.arange(nodes - 1).repeat(batch, 1)
    with NoHostWait():
        records = []
        for step in range(steps):
            law = drafting.law(logits[step], temperatures, top_ks)
            drafting.draw(law, sampling_seed=seed, positions=rows[step], draft_step=step)
            records.append(drafting.record(law, batch))
        proposals = drafting.proposals(torch.stack(records, dim=1), parents, kept)
    assert proposals.ids.shape == proposals.probs.shape == (batch, nodes, 8)
    assert all(record.shape == (batch, drafting.record_width) for record in records)


def requests(count, **custom):
    """Requests as the verify step knows them, with these nsd_* options."""
    params = SimpleNamespace(custom_params=custom, max_new_tokens=8, top_k=-1, stop_token_ids={3})
    return [
        SimpleNamespace(rid=str(i), sampling_params=params, eos_token_ids={2}, tokenizer=None, origin_input_ids=[5], output_ids=[])
        for i in range(count)
    ]


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("custom", [{}, {"nsd_epsilon": 0.1, "nsd_protect_stop": True, "nsd_scope": "thinking"}])
def test_verification(torch_hash, monkeypatch, topk, custom):
    """Up to the launch of the kernel, which is what a GPU would run asynchronously."""
    from nsd_sglang.kernels import triton_verify

    launched = []

    def launch(grid, *arguments, **_):
        launched.append(grid)
        for output in arguments[13:18]:  # predict, accept_index, num_correct_drafts, rescued, tv_bound
            output.zero_()

    launcher = type("Launcher", (), {"__getitem__": lambda self, grid: functools.partial(launch, grid)})()
    monkeypatch.setattr(triton_verify, "verify_tree_kernel", launcher)
    batch, nodes, vocabulary = 2, 4, 50
    acceptance = NucleusAcceptance(NSDOptions(verify_backend="triton", think_ids=(7, 9)))
    batch_info = SimpleNamespace(
        reqs=requests(batch, **custom),
        req_pool_indices=torch.arange(batch),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(batch + 1, 4)),
        spec_info=SimpleNamespace(topk=topk),
        sampling_info=SimpleNamespace(sampling_seed=torch.arange(batch)),
        seq_lens=torch.arange(batch),
    )
    laws = Proposals(ids=torch.zeros(batch, nodes, 8).long(), probs=torch.zeros(batch, nodes, 8))
    arguments = dict(
        predicts=torch.zeros(batch * nodes, dtype=torch.int32),
        accept_index=torch.full((batch, nodes), -1, dtype=torch.int32),
        accept_token_num=torch.zeros(batch, dtype=torch.int32),
        candidates=torch.zeros(batch, nodes).long(),
        retrive_index=torch.arange(batch * nodes).view(batch, nodes),
        retrive_next_token=torch.full((batch, nodes), -1).long(),
        retrive_next_sibling=torch.full((batch, nodes), -1).long(),
        uniform_samples=torch.rand(batch, nodes),
        uniform_samples_for_final_sampling=torch.rand(batch),
        target_probs=torch.rand(batch, nodes, vocabulary),
        draft_probs=None,
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    with NoHostWait():
        acceptance.spans.begin(batch_info)
        with acceptance.step(batch_info, laws):
            acceptance(**arguments)
        outcome = acceptance.take_outcome()
        tokens = arguments["predicts"].view(batch, nodes)
        acceptance.spans.commit(batch_info, arguments["candidates"][:, 0], tokens, arguments["accept_token_num"])
    assert launched == [(batch,)] and outcome.shape == (3, batch)


def test_reduced_vocabulary_ids_become_target_ids():
    """The worker maps recorded ids, also without waiting, and leaves padding outside the vocabulary."""
    from nsd_sglang.worker import _NSDWorker

    worker = SimpleNamespace(
        _draft_worker=SimpleNamespace(hot_token_id=torch.tensor([7, 9, 30])),
        target_worker=SimpleNamespace(model_config=SimpleNamespace(vocab_size=50)),
    )
    verify_input = SimpleNamespace(
        draft_probs=Proposals(ids=torch.tensor([[[2, 0, -1]]]), probs=torch.tensor([[[0.5, 0.5, 0.0]]]))
    )
    batch = SimpleNamespace(seq_lens=torch.zeros(1))
    with NoHostWait():
        proposals = _NSDWorker._take_proposals(worker, verify_input, batch)
    assert proposals.ids.tolist() == [[[30, 7, -1]]]
    assert verify_input.draft_probs.shape == (1, 1, 50)  # what eagle_sample compares with the target's width


def test_penalties_and_filters(monkeypatch):
    import dataclasses

    from nsd_sglang.node_logits import NodeLogits
    from sglang.srt.speculative import eagle_utils

    # The filters are kernels on a GPU; the platform's own read values on the host.
    monkeypatch.setattr(eagle_utils, "top_k_renorm_prob", lambda probs, top_ks: probs.clone())
    monkeypatch.setattr(eagle_utils, "top_p_renorm_prob", lambda probs, top_ps: probs.clone())

    fields = dict(
        acc_additive_penalties=torch.zeros(2, 30),
        acc_scaling_penalties=None,
        has_custom_logit_processor=False,
        logit_bias=None,
        need_top_k_sampling=True,
        need_top_p_sampling=True,
        need_min_p_sampling=True,
        is_any_greedy=True,
        top_ks=torch.tensor([1, 5]),
        top_ps=torch.tensor([1.0, 0.9]),
        min_ps=torch.tensor([0.0, 0.1]),
    )
    info = dataclasses.make_dataclass("Info", list(fields))(**fields)
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2)
    params = SimpleNamespace(
        frequency_penalty=0.5, presence_penalty=0.0, repetition_penalty=1.2, min_new_tokens=6, stop_token_ids={3}
    )
    reqs = [
        SimpleNamespace(sampling_params=params, output_ids=ids, origin_input_ids=[1] * 4, eos_token_ids=None, tokenizer=tokenizer)
        for ids in ([7, 8], [])
    ]
    verify_input = SimpleNamespace(
        draft_token=torch.arange(6),
        retrieve_next_token=torch.tensor([[1, -1, -1]] * 2),
        retrieve_next_sibling=torch.tensor([[-1, 2, -1]] * 2),
        topk=2,
        max_tree_depth=2,
    )
    batch = SimpleNamespace(
        sampling_info=info,
        reqs=reqs,
        device="cpu",
        seq_lens=torch.tensor([5, 4]),
        req_pool_indices=torch.tensor([1, 2]),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(3, 9)),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
    )
    output = SimpleNamespace(next_token_logits=torch.randn(6, 30))
    law = NodeLogits(joint_filters=False)
    seen = []
    kernel = law.filtered(lambda *, target_probs: seen.append(target_probs))

    def stock(verify_input, batch, logits_output, grammar_mask):
        assert batch.sampling_info.acc_additive_penalties is None and not batch.sampling_info.need_top_p_sampling
        kernel(target_probs=logits_output.next_token_logits.softmax(-1).view(2, 3, 30))
        return torch.zeros(6, dtype=torch.int32), torch.tensor([1, 2]), torch.tensor([[0, -1], [3, 4]], dtype=torch.int32)

    with NoHostWait():
        law.sample(stock, verify_input, batch, output, None)
    assert batch.sampling_info is info
    (probs,) = seen
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, 3))
    assert not probs[:, :, [2, 3]].any()  # the end and the stop token, before six tokens
    assert (probs[0] > 0).sum() == 3  # the greedy request keeps one token a node
