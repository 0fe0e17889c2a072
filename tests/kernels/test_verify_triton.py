"""The Triton kernel decides as the torch reference does, from the same coins."""

import kernel_interpreter
import pytest
import torch
from kernel_cases import CHAIN, TREE, random_case

from nsd_sglang.kernels.verify import verify_tree

# The interpreter sums a block of 8192 float32 one by one; equal terms round the same way, up to some 1e-5 in all.
EDGE = 5e-5


def last_tokens(result, nodes):
    last = result.accept_index.gather(1, result.num_correct_drafts.long()[:, None])[:, 0]
    return result.predict[last.long()], last.long()


def assert_same(triton, case, edge=EDGE):
    """Equal, but for a last draw whose coin lies within `edge` of an edge of the CDF."""
    torch_result = verify_tree(**case, backend="torch")
    for name in ("accept_index", "num_correct_drafts", "rescued"):
        assert getattr(triton, name).equal(getattr(torch_result, name)), name
    torch.testing.assert_close(triton.tv_bound, torch_result.tv_bound, atol=2e-6, rtol=0)
    nodes = case["candidates"].shape[1]
    tokens, last = last_tokens(triton, nodes)
    below = last_tokens(verify_tree(**(case | {"final_coins": case["final_coins"] - edge}), backend="torch"), nodes)[0]
    above = last_tokens(verify_tree(**(case | {"final_coins": case["final_coins"] + edge}), backend="torch"), nodes)[0]
    assert ((below <= tokens) & (tokens <= above)).all()
    others = torch.ones_like(triton.predict, dtype=torch.bool)
    others[last] = False
    assert triton.predict[others].equal(torch_result.predict[others])
    return torch_result


@pytest.mark.parametrize("vocab", [8, 1000, 8193, 49152])
@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
def test_kernel_equals_reference(interpreter, parents, sampled, vocab):
    outcomes = torch.zeros(3, dtype=torch.int64)
    for seed in range(8):  # all combinations of the three options
        options = dict(epsilon=seed & 1 > 0, protected=seed & 2 > 0, ordered=seed & 4 > 0, strided=seed % 3 == 0)
        case = random_case(seed, parents, vocab, sampled=sampled, **options)
        result = assert_same(interpreter(kernel_interpreter.verify, case), case)
        drafts, rescued = result.num_correct_drafts, result.rescued
        outcomes += torch.stack([(drafts - rescued).sum(), rescued.sum(), (drafts == 0).sum()])
    assert (outcomes > 0).all(), "SD acceptance, rescue and rejection must all occur"


@pytest.mark.parametrize("sampled", [False, True], ids=["top-k", "sampled"])
def test_sums_without_rounding_give_equal_tokens(interpreter, sampled):
    """Multiples of 2**-20 add up exactly in any order, so the draws must agree to the token."""
    for seed in range(8):
        case = random_case(seed, CHAIN, 20000, sampled=sampled, batch=8)
        case["target_probs"] = (case["target_probs"] * 2**20).round() / 2**20
        if sampled:
            q = (case["proposals"].probs * 2**20).round() / 2**20
            case["proposals"] = case["proposals"]._replace(probs=q)
        assert_same(interpreter(kernel_interpreter.verify, case), case, edge=0.0)


@pytest.mark.parametrize("width", [1, 3, 64, 100])
def test_candidate_widths(interpreter, width):
    for seed in range(6):
        case = random_case(seed, TREE if width > 3 else CHAIN, 1000, sampled=True, width=width)
        assert_same(interpreter(kernel_interpreter.verify, case), case)


def test_siblings_without_coins_are_left_to_the_gate(interpreter):
    for seed in range(6):
        case = random_case(seed, TREE, 50, sampled=True) | {"sibling_coins": None}
        assert_same(interpreter(kernel_interpreter.verify, case), case)


def test_one_node_and_empty_batch(interpreter):
    for case in (random_case(0, [0], 50, sampled=False), random_case(0, CHAIN, 50, sampled=True, batch=5)):
        case = case | {"max_depth": 1}
        assert_same(interpreter(kernel_interpreter.verify, case), case)
    empty = {name: value[:0] if isinstance(value, torch.Tensor) else value for name, value in case.items()}
    empty |= {"proposals": None}
    for result in (interpreter(kernel_interpreter.verify, empty), verify_tree(**empty, backend="torch")):
        assert [tuple(x.shape) for x in result] == [(0,), (0, 1), (0,), (0,), (0,)]
        assert [x.dtype for x in result] == [torch.int32] * 4 + [torch.float32]
