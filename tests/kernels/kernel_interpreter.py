"""Worker processes for tests that need Triton in one mode or the other.

Triton decides when it is imported whether it interprets or compiles, so each mode gets processes of its own and the
test process stays as it is.
"""

import importlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def pool(interpret: bool, workers: int) -> ProcessPoolExecutor:
    """Processes in which Triton interprets, or compiles for real."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (interpret,))


def _start(interpret: bool):
    os.environ.pop("TRITON_INTERPRET", None)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    assert "triton" not in sys.modules


def verify(arguments: dict, substitutions: tuple = (), scratch: str = ""):
    """`verify_tree(**arguments)` on the Triton backend, its kernels' source text changed as `substitutions` say.

    A substitution is (file, old, new); `old` must occur exactly once.
    """
    from nsd_sglang.kernels.verify import verify_tree

    if not substitutions:
        return verify_tree(**arguments, backend="triton")
    from nsd_sglang.kernels.checks import check_inputs

    inputs = {"max_depth": 1, "proposals": None, "sibling_coins": None, "gate_coins": None}
    inputs |= {"epsilon": None, "protected": None, "ordered_ties": False, "gate": "nucleus"}
    mutant = _mutant(substitutions, scratch)
    return mutant.verify_tree_triton(check_inputs(**(inputs | arguments)))


def _mutant(substitutions, scratch):
    """`triton_verify` imported from a changed copy under `scratch`, whose name is also the prefix of its modules."""
    folder = Path(scratch)
    sys.path.insert(0, str(folder.parent))
    try:
        if folder.name + ".triton_verify" not in sys.modules:
            folder.mkdir()
            for name in ("triton_row.py", "triton_node.py", "triton_gates.py", "triton_budget.py", "triton_verify.py"):
                text = (KERNELS / name).read_text()
                for file, old, new in substitutions:
                    if file == name:
                        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
                        text = text.replace(old, new)
                text = text.replace("nsd_sglang.kernels.triton_", folder.name + ".triton_")
                (folder / name).write_text(text)
        return importlib.import_module(folder.name + ".triton_verify")
    finally:
        sys.path.pop(0)


def operators_called(arguments: dict) -> list[str]:
    """Names of the torch operators that the Triton path dispatches on the host, with the launch itself left out."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from nsd_sglang.kernels import triton_verify
    from nsd_sglang.kernels.verify import verify_tree

    called = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **(kwargs or {}))

    class Launch:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: called.append("launch")

    kernel, triton_verify.verify_tree_kernel = triton_verify.verify_tree_kernel, Launch()
    try:
        with Recorder():
            verify_tree(**arguments, backend="triton")
    finally:
        triton_verify.verify_tree_kernel = kernel
    return called
