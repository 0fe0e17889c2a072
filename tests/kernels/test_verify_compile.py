"""The kernel compiles for GPUs that are not here, and keeps everything in registers."""

import itertools
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from nsd_sglang.kernels.gates import GATES

CAPABILITIES = (80, 90, 100)

DTYPES = dict(
    candidates_ptr="*i64",
    next_token_ptr="*i64",
    next_sibling_ptr="*i64",
    ids_ptr="*i64",
    protected_ptr="*i64",
    predict_ptr="*i32",
    accept_index_ptr="*i32",
    num_correct_drafts_ptr="*i32",
    rescued_ptr="*i32",
    target_stride_b="i64",
    target_stride_n="i32",
    num_protected="i32",
)  # all others: *fp32


def compile_kernel(capability, absent, ordered, sizes, gate="nucleus"):
    """Resource usage (cuobjdump's words) and PTX of one variant; runs in a process where Triton compiles."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nsd_sglang.kernels.triton_verify import kernel_shape, launch_options, verify_tree_kernel

    shape = kernel_shape(**sizes)
    constants = shape | {"ORDERED_TIES": ordered, "GATE": gate} | dict.fromkeys(absent)
    names = verify_tree_kernel.arg_names
    signature = {name: "constexpr" if name in constants else DTYPES.get(name, "*fp32") for name in names}
    # As at a launch: allocations and multiples of 16 are known to be aligned, which allows 128-bit loads.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*") or name.startswith("target_stride")
    }
    source = ASTSource(verify_tree_kernel, signature, constants, aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch_options(hip=False))
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([cuobjdump, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return usage.stdout, kernel.asm["ptx"]


def variants():
    for sampled, siblings, epsilon, protected, ordered in itertools.product([False, True], repeat=5):
        if siblings and not sampled:
            continue
        # Both tie rules and both chains and trees, but not their whole product with the rest.
        if sampled and siblings == ordered:
            continue
        absent = [] if sampled else ["ids_ptr", "q_ptr"]
        absent += [] if siblings else ["sibling_coins_ptr"]
        absent += [] if epsilon else ["gate_coins_ptr", "epsilon_ptr"]
        absent += [] if protected else ["protected_ptr"]
        yield absent, ordered


def assert_no_spill(usage, ptx):
    registers, stack, local = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK", "LOCAL"))
    assert stack == 0 and local == 0, usage
    assert registers <= 255
    assert "ld.global.v4.b32" in ptx, "rows are read 128 bits at a time"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_variant_spills(compilers, capability):
    sizes = dict(nodes=16, vocab=151936, max_depth=6, candidates=64)
    jobs = [
        compilers.submit(compile_kernel, capability, absent, ordered, sizes | _candidates(absent))
        for absent, ordered in variants()
        # The whole product where it matters most; elsewhere budget and protected tokens only together.
        if capability == 90 or ("epsilon_ptr" in absent) == ("protected_ptr" in absent)
    ]
    assert len(jobs) == (16 if capability == 90 else 8)
    for job in jobs:
        assert_no_spill(*job.result())


@pytest.mark.parametrize(
    "sizes",
    [
        dict(nodes=1, vocab=1000, max_depth=1, candidates=1),
        dict(nodes=64, vocab=32000, max_depth=9, candidates=256),
        dict(nodes=128, vocab=262144, max_depth=17, candidates=1024),
    ],
    ids=lambda sizes: f"V{sizes['vocab']}-C{sizes['candidates']}",
)
def test_no_size_spills(compilers, sizes):
    jobs = [
        compilers.submit(compile_kernel, 90, absent, True, sizes | _candidates(absent))
        for absent in ([], ["ids_ptr", "q_ptr", "sibling_coins_ptr"])
    ]
    for job in jobs:
        assert_no_spill(*job.result())


@pytest.mark.parametrize("gate", [name for name in GATES if name != "nucleus"])
def test_no_gate_spills(compilers, gate):
    sizes = dict(nodes=16, vocab=151936, max_depth=6, candidates=64)
    point_mass = ["ids_ptr", "q_ptr", "sibling_coins_ptr", "gate_coins_ptr", "epsilon_ptr", "protected_ptr"]
    jobs = [compilers.submit(compile_kernel, capability, [], True, sizes, gate) for capability in CAPABILITIES]
    if not GATES[gate].upper:  # the rules that look at q
        jobs.append(compilers.submit(compile_kernel, 90, point_mass, False, sizes | _candidates(point_mass), gate))
    for job in jobs:
        assert_no_spill(*job.result())


def _candidates(absent):
    return {"candidates": 0} if "ids_ptr" in absent else {}
