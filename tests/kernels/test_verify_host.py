"""What happens before the launch: checks that name the argument, and nothing that waits for the device."""

import doctest

import kernel_interpreter
import pytest
import torch
from kernel_cases import TREE, random_case

from nsd_sglang.kernels import verify as verify_module
from nsd_sglang.kernels.verify import Proposals, verify_tree

WAITS = ("_local_scalar_dense", "item", "nonzero", "aten.index.", "masked_select", "unique", "equal", "_to_copy")


def full_case(**options):
    return random_case(0, TREE, 20, sampled=True, epsilon=True, protected=True, **options)


@pytest.mark.parametrize("strided", [False, True])
def test_triton_path_never_waits(interpreter, strided):
    called = interpreter(kernel_interpreter.operators_called, full_case(strided=strided))
    assert called.count("launch") == 1 and len(called) > 5
    assert not [name for name in called for wait in WAITS if wait in name]
    # Five outputs and the launch: no copy of anything unless a layout asks for it.
    assert strided or sorted(set(called)) == ["aten.empty.memory_format", "launch"]


def test_recorder_sees_a_wait(interpreter):
    """The test above would notice: the torch backend does wait."""
    seen = interpreter(_operators_of_reference, full_case())
    assert any("_local_scalar_dense" in name for name in seen)


def _operators_of_reference(case):
    from nsd_sglang.kernels import triton_verify
    from nsd_sglang.kernels.reference import verify_tree_torch

    original, triton_verify.verify_tree_triton = triton_verify.verify_tree_triton, verify_tree_torch
    try:
        return kernel_interpreter.operators_called(case)
    finally:
        triton_verify.verify_tree_triton = original


def test_target_probs_is_not_copied():
    case = random_case(0, TREE, 20, sampled=False, strided=True)
    names = ("candidates", "retrieve_next_token", "retrieve_next_sibling", "target_probs", "coins", "final_coins")
    absent = ("proposals", "sibling_coins", "gate_coins", "epsilon", "protected")
    options = dict.fromkeys(absent) | {"ordered_ties": False, "gate": "nucleus"}
    positional = [case[name] for name in (*names, "threshold")]
    inputs = verify_module.check_inputs(*positional, max_depth=3, **options)
    assert inputs.target_probs is case["target_probs"] and not inputs.target_probs.is_contiguous()
    transposed = case["target_probs"].transpose(1, 2).contiguous().transpose(1, 2)
    positional[3] = transposed
    assert verify_module.check_inputs(*positional, max_depth=3, **options).target_probs.stride(2) == 1
    results = (verify_tree(**(case | {"target_probs": p})) for p in (case["target_probs"], transposed))
    assert all(x.equal(y) for x, y in zip(*results))


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("candidates", torch.zeros(5, 12).int(), r"candidates: expected torch.int64 \[5, 12\], got torch.int32"),
        ("candidates", torch.zeros(5, 11, dtype=torch.int64), r"candidates: .* got torch.int64 \[5, 11\]"),
        ("retrieve_next_token", torch.zeros(5, 12), "retrieve_next_token: "),
        ("retrieve_next_sibling", None, "retrieve_next_sibling: .* got NoneType"),
        ("target_probs", torch.zeros(60, 20), r"target_probs: expected a tensor of shape \[B, N, V\]"),
        ("target_probs", torch.zeros(5, 12, 20, dtype=torch.bfloat16), "target_probs: expected float32"),
        ("target_probs", torch.zeros(5, 12, 0), "target_probs: expected N >= 1"),
        ("coins", torch.zeros(5, 12, dtype=torch.float64), "coins: expected torch.float32"),
        ("final_coins", torch.zeros(5, 1), "final_coins: "),
        ("threshold", torch.zeros(()), "threshold: "),
        ("threshold", 0.95, "threshold: .* got float"),
        ("max_depth", 0, "max_depth: expected an int >= 1, got 0"),
        ("max_depth", True, "max_depth: "),
        ("proposals", (torch.zeros(1), torch.zeros(1)), "proposals: expected Proposals or None, got tuple"),
        ("proposals", Proposals(torch.zeros(5, 12, 0).long(), torch.zeros(5, 12, 0)), "proposals.ids: .* C >= 1"),
        ("proposals", Proposals(torch.zeros(5, 12, 4).long(), torch.zeros(5, 12, 3)), "proposals.probs: "),
        ("sibling_coins", torch.zeros(5), "sibling_coins: "),
        ("gate_coins", None, "gate_coins: .* because epsilon is given"),
        ("epsilon", torch.zeros(4), "epsilon: "),
        ("protected", torch.zeros(5).long(), r"protected: expected torch.int64 \[5, P\]"),
        ("coins", torch.zeros(5, 12, device="meta"), "coins: expected a tensor on cpu like target_probs, got meta"),
        ("backend", "cuda", "backend: "),
        ("gate", "naive", "gate: expected one of nucleus, greedy-margin, .*, got 'naive'"),
    ],
)
def test_wrong_arguments_are_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        verify_tree(**(full_case() | {name: value}))


def test_triton_says_where_it_cannot_run(compilers, interpreter):
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        compilers.submit(kernel_interpreter.verify, full_case()).result()
    case = random_case(0, TREE, 20, sampled=False)
    double = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in case.items()}
    with pytest.raises(ValueError, match="target_probs: expected torch.float32 for the Triton backend"):
        interpreter(kernel_interpreter.verify, double)
    assert verify_tree(**double).tv_bound.dtype == torch.float64


def test_inputs_are_left_as_they_were():
    case = full_case(strided=True)
    copies = {name: value.clone() for name, value in case.items() if isinstance(value, torch.Tensor)}
    ids, q = (x.clone() for x in case["proposals"])
    verify_tree(**case, backend="torch")
    assert all(case[name].equal(value) for name, value in copies.items())
    assert case["proposals"].ids.equal(ids) and case["proposals"].probs.equal(q)


def test_example_in_the_docstring():
    failed, attempted = doctest.testmod(verify_module)
    assert failed == 0 and attempted > 0
