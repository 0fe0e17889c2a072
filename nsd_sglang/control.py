"""Per-request settings as the rows of a verify step.

Letters in shapes: B requests, N tree nodes, P protected tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from nsd_sglang.options import NSDOptions, OptionError
from nsd_sglang.request import RequestControl, default_control, request_control
from nsd_sglang.request_rows import stop_ids, to_device

logger = logging.getLogger(__name__)

NO_BUDGET = 1.0  # an epsilon of 1 or more is plain NSD


@dataclass
class RequestState:
    """NSD's part of one request, kept on SGLang's `Req`: its settings, and what its verify steps added up to.

    control: the settings in force. protected: tokens a rescue may not emit. rescued, tv_bound, gated: sums over its
    steps, see `NucleusAcceptance.take_outcome`.
    """

    control: RequestControl
    protected: tuple[int, ...]
    rescued: int = 0
    tv_bound: float = 0.0
    gated: int = 0


def request_state(req: Any, options: NSDOptions) -> RequestState:
    """The state of a request, made at its first use. Settings that no tokenizer process has checked, and that do not
    hold, leave the request exact (threshold 0)."""
    state = getattr(req, "_nsd_state", None)
    if state is None:
        params = req.sampling_params
        # SGLang sends 0 to fill the cache for the n answers to one prompt, and where the context leaves no room.
        tokens = 1 if params.max_new_tokens == 0 else params.max_new_tokens
        try:
            control = request_control(params.custom_params, tokens, options)
            if params.top_k == 1:
                # Greedy: its nucleus is the argmax, which the standard test already accepts.
                control = RequestControl(0.0, control.epsilon, control.protect_stop, control.scope)
        except OptionError as error:
            logger.error("Request %s is served without nucleus acceptance: %s", req.rid, error)
            control = RequestControl(0.0, options.epsilon, options.protect_stop, options.scope)
        state = req._nsd_state = RequestState(control, tuple(stop_ids(req)) if control.protect_stop else ())
    return state


class StepControl(NamedTuple):
    """Settings of a verify step's rows.

    threshold: float32 [B]. epsilon: float32 [B], None when no row has a budget. protected: int64 [B, P] padded with -1,
    None when no row protects a token. thinking: bool [B], None when no row is limited to the reasoning span.
    """

    threshold: torch.Tensor
    epsilon: torch.Tensor | None
    protected: torch.Tensor | None
    thinking: torch.Tensor | None


class BatchControl:
    """Builds the rows of each step; a batch with the settings of the step before it costs no copy to the device."""

    def __init__(self, options: NSDOptions):
        self.options = options
        self._key: tuple | None = None
        self._rows: StepControl | None = None

    def rows(self, reqs: list[Any], batch_size: int, device: torch.device) -> StepControl:
        """reqs: SGLang's requests, in row order. batch_size: B; rows beyond the requests (padding) get the defaults."""
        states = [request_state(req, self.options) for req in reqs[:batch_size]]
        settings = [(state.control, state.protected) for state in states]
        settings += [(default_control(self.options), ())] * (batch_size - len(settings))
        key = (device, *settings)
        if key != self._key:
            self._key, self._rows = key, _build(settings, device)
        return self._rows


def _build(settings: list[tuple[RequestControl, tuple[int, ...]]], device: torch.device) -> StepControl:
    controls = [control for control, _ in settings]
    epsilon = protected = thinking = None
    if any(control.epsilon is not None for control in controls):
        budgets = [NO_BUDGET if control.epsilon is None else control.epsilon for control in controls]
        epsilon = to_device(np.array(budgets, np.float32), device)
    width = max((len(tokens) for _, tokens in settings), default=0)
    if width:
        protected = to_device(np.array([[*tokens] + [-1] * (width - len(tokens)) for _, tokens in settings], np.int64), device)
    if any(control.scope == "thinking" for control in controls):
        thinking = to_device(np.array([control.scope == "thinking" for control in controls]), device)
    threshold = to_device(np.array([control.threshold for control in controls], np.float32), device)
    return StepControl(threshold, epsilon, protected, thinking)
