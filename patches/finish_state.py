"""An answer that ends inside a verified block counts nothing of the block beyond its end.

SGLang appends the whole block to `output_ids`, then finds the end and sets `finished_len`. Two things go past it in 0.5.23:
`reasoning_tokens` is counted before the end is known (sgl-project/sglang#39826, #37450: usage.reasoning_tokens above
usage.completion_tokens), and an abort that is pending when the block arrives skips the search for the end, so that the
answer can be longer than its max_new_tokens or hold what follows a stop. In plain decoding neither can happen.

Assigns `Req.update_finish_state(self, new_accepted_len=1)` in the process that builds an NSD worker.
"""

from __future__ import annotations

from typing import Any, Callable


def install() -> None:
    from sglang.srt.managers.schedule_batch import Req

    from nsd_sglang.patches.assign import assign

    assign(Req, "update_finish_state", _within_the_answer(Req.update_finish_state))


def _within_the_answer(stock: Callable[..., None]) -> Callable[..., None]:
    def update_finish_state(self: Any, new_accepted_len: int = 1) -> None:
        pending = None
        if new_accepted_len > 0 and not self.finished():
            pending, self.to_finish = self.to_finish, None
        stock(self, new_accepted_len)
        if pending is not None:  # the reason stays the abort, whatever the block holds; only its length was wanted
            self.finished_reason = pending
        if self.finished_len is not None:
            # Reasoning, where it is counted at all, begins with the answer's first token.
            self.reasoning_tokens = min(self.reasoning_tokens, self.finished_len)

    return update_finish_state
