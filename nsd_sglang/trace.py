"""`--nsd-trace FILE`: verify steps as JSON lines, for diagnostics.

The first line is a header: what recorded it, the options, what each field of a node says. Every later line is one
request in one verify step: `step` (counted from 0), `row` in its batch, `rid` (null where SGLang does not name it),
`threshold` in force, `tv_bound`, and `nodes`, those visited that had children (`trace_nodes.NODE_FIELDS`). Batches whose
requests are all greedy run SGLang's own verification and are not in the file.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsd_sglang import __version__
from nsd_sglang.options import NSDOptions, flag
from nsd_sglang.trace_nodes import NODE_FIELDS, VerifyStep, describe

logger = logging.getLogger(__name__)

SCHEMA = 1
_MB = 1_000_000


def for_this_process(options: NSDOptions) -> Trace | None:
    """The trace of this scheduler process: None without `--nsd-trace`, and on every tensor-parallel rank but the first,
    whose decisions the others take over. A second data-parallel replica writes `FILE.dp1.SUFFIX`, and so on."""
    if options.trace is None:
        return None
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.attn_tp_rank != 0 or parallel.attn_cp_rank != 0:
        return None
    return Trace(options, replica=parallel.attn_dp_rank or parallel.dp_rank or 0)


class Trace:
    """An open trace file. Recording ends for good at the size bound, or when the file cannot be written; serving goes on."""

    def __init__(self, options: NSDOptions, replica: int = 0):
        path = Path(options.trace)
        self.path = path.with_name(f"{path.stem}.dp{replica}{path.suffix}") if replica else path
        self.steps = 0
        self._room = options.trace_max_mb * _MB
        self._bound = f"{flag('trace_max_mb')} {options.trace_max_mb}"
        header = {"schema": SCHEMA, "kind": "nsd-trace", "version": __version__, "options": asdict(options)}
        self._file = open(self.path, "w", encoding="utf-8")
        self._write([header | {"node_fields": NODE_FIELDS}])
        logger.info("NSD: recording verify steps to %s, at most %d MB", self.path, options.trace_max_mb)

    def record(self, batch: Any, step: VerifyStep) -> None:
        """Append one verify step. batch: the ScheduleBatch it belongs to. Waits for the device."""
        if self._file is None:
            return
        rids = [getattr(request, "rid", None) for request in getattr(batch, "reqs", None) or ()]
        thresholds, bounds = step.threshold.tolist(), step.result.tv_bound.tolist()
        lines = []
        for row, nodes in enumerate(describe(step)):
            line = {"step": self.steps, "row": row, "rid": rids[row] if row < len(rids) else None}
            line |= {"threshold": float(f"{thresholds[row]:.6g}"), "tv_bound": float(f"{bounds[row]:.6g}"), "nodes": nodes}
            lines.append(line)
        self._write(lines)
        self.steps += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, lines: list[dict]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        if len(text) > self._room:  # json.dumps writes ASCII: characters are bytes
            self.close()
            logger.warning("NSD: %s holds %s MB after %d verify steps; recording stopped", self.path, self._bound, self.steps)
            return
        try:
            self._file.write(text)
            self._file.flush()  # a server that is killed leaves whole steps
            self._room -= len(text)
        except OSError as error:
            self._file = None
            logger.warning("NSD: %s cannot be written (%s); recording stopped", self.path, error)
