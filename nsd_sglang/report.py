"""What NSD did to each answer, from the verify step on the device to the answer's meta_info.

A worker attaches `StepOutcome` to the step's output; SGLang copies it to the host with the step's other results and calls
`HostOutcome.consume` before it streams, which adds it to the requests. `NSDOutputStreamer` puts each request's sums beside
the tokens it sends out, and `report_channel.answer_fields` names them for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from nsd_sglang.control import request_state
from nsd_sglang.options import NSDOptions
from nsd_sglang.report_channel import CHANNEL


@dataclass(frozen=True)
class StepOutcome:
    """Device side. outcome: float32 [3, B], see `NucleusAcceptance.take_outcome`; None: nothing was rescued."""

    outcome: torch.Tensor | None
    ledger: Ledger

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> HostOutcome:
        return HostOutcome(None if self.outcome is None else copy_tensor(self.outcome), self.ledger)


@dataclass(frozen=True)
class HostOutcome:
    """Host side of the same, read once SGLang has waited for its copies."""

    outcome: torch.Tensor | None
    ledger: Ledger

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """commits: per request what the step added to its answer, None for a request that had ended before."""
        columns = [[0.0] * len(commits)] * 3 if self.outcome is None else self.outcome.tolist()
        for req, commit, rescued, tv_bound, gated in zip(batch.reqs, commits, *columns):
            if commit is not None:
                self.ledger.add(req, min(int(rescued), len(commit.token_ids)), tv_bound, int(gated), len(commit.token_ids))


class Ledger:
    """Sums of one scheduler process: on each request, and since the last decode log line."""

    def __init__(self, options: NSDOptions):
        self.options = options
        self.tokens = self.rescued = self.gated = 0
        self.tv_bound = 0.0

    def add(self, req: Any, rescued: int, tv_bound: float, gated: int, tokens: int) -> None:
        state = request_state(req, self.options)
        state.rescued += rescued
        state.tv_bound += tv_bound
        state.gated += gated
        self.rescued += rescued
        self.tv_bound += tv_bound
        self.gated += gated
        self.tokens += tokens

    def log_line(self) -> str | None:
        """What the steps since the last call did; None without tokens."""
        if not self.tokens:
            return None
        line = (
            f"NSD: rescued tokens: {self.rescued} of {self.tokens}, nodes gated: {self.gated}, "
            f"tv bound per token: {self.tv_bound / self.tokens:.3f}"
        )
        self.tokens = self.rescued = self.gated = 0
        self.tv_bound = 0.0
        return line


class NSDOutputStreamer(SchedulerOutputStreamer):
    """SGLang's streamer, with each request's sums. `nsd_options` is set by `nsd_streamer_class`."""

    has_additional_customized_info = True
    nsd_options: NSDOptions

    def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list]:
        return {CHANNEL: [self._entry(req) for req in reqs]}

    def _entry(self, req: Any) -> tuple[float, ...]:
        state = request_state(req, self.nsd_options)
        control = state.control
        tokens = len(req.output_ids) if req.finished_len is None else req.finished_len
        agreement = control.agreement_bound(tokens, state.tv_bound)
        return (state.rescued, state.tv_bound, state.gated, control.threshold, control.epsilon, agreement)


def nsd_streamer_class(options: NSDOptions) -> type:
    """The streamer class of a server with these options."""
    return type("NSDOutputStreamer", (NSDOutputStreamer,), {"nsd_options": options, "__module__": __name__})
