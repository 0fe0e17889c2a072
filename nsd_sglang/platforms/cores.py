"""Which cores each rank of a server on the CPU platform computes on."""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"


def share_cores(server_args: Any) -> None:
    """Give every rank a share of the cores where SGLang would ask the operator to: by default it gives each rank a NUMA node,
    and refuses to start with more ranks than nodes. The processes that are started from here inherit it."""
    from sglang.srt.utils.common import get_cpu_ids_by_node

    ranks = server_args.tp_size * server_args.dp_size * server_args.pp_size
    if VARIABLE not in os.environ and server_args.nnodes == 1 and ranks > len(get_cpu_ids_by_node()):
        os.environ[VARIABLE] = cores_by_rank(sorted(os.sched_getaffinity(0)), ranks)


def cores_by_rank(cores: list[int], ranks: int) -> str:
    """`cores` split into `ranks` runs, as SGLang spells them ("0,1|2,3"); with more ranks than cores some share one."""
    starts = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    runs = [cores[first : max(end, first + 1)] for first, end in zip(starts, starts[1:])]
    return "|".join(",".join(map(str, run)) for run in runs)
