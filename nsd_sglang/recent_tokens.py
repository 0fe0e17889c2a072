"""The tokens of each request's last verify step, kept on the device.

Under overlap scheduling a verify step is launched before the host has seen what the step before accepted. Whoever needs the
whole answer takes what the host knows and the rest from here. Positions count from the start of the prompt; an entry left by
a slot's earlier owner lies outside the range that `between` is asked for.
"""

from __future__ import annotations

import torch


class RecentTokens:
    """One entry for each request slot: the tokens of a step, `width` at first, and the position of the first of them.
    Nothing waits for the device."""

    def __init__(self, slots: int, width: int, device: str | torch.device):
        self.tokens = torch.zeros(slots, width, dtype=torch.int64, device=device)
        self.first = torch.zeros(slots, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)

    def record(self, slots: torch.Tensor, tokens: torch.Tensor, first: torch.Tensor, lengths: torch.Tensor) -> None:
        """Replace the entries of `slots`. slots, first, lengths: integer [B]; tokens: integer [B, W], where W may
        differ from step to step."""
        width = tokens.shape[1]
        if width > self.tokens.shape[1]:
            self.tokens = torch.nn.functional.pad(self.tokens, (0, width - self.tokens.shape[1]))
        self.tokens[slots, :width] = tokens.long()
        self.first[slots] = first.long()
        self.lengths[slots] = lengths.long()

    def between(self, slots: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, int64 [R, width], and which of them lie at a position from `start` to before `end`, bool [R, width].

        slots, start, end: int64 [R]."""
        offset = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        position = self.first[slots].unsqueeze(1) + offset
        valid = (offset < self.lengths[slots].unsqueeze(1)) & (position >= start[:, None]) & (position < end[:, None])
        return self.tokens[slots], valid
