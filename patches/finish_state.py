"""An answer that ends inside a verified block ends where plain decoding ends it, and counts nothing of the block beyond.

SGLang appends the whole block to `output_ids`, then looks for an end in it and sets `finished_len`. In 0.5.23 that differs
from looking at one token after the other:
- it looks for stop strings in the order of the list, then for regular expressions, then for stop tokens, and takes the first
  that the block holds anywhere: with `stop` "q" a block of end-of-sequence and "q" is answered through "q";
- `reasoning_tokens` is counted before the end is known (sgl-project/sglang#39826, #37450: usage.reasoning_tokens above
  usage.completion_tokens);
- an abort that is pending when the block arrives skips the search for the end, so that the answer can be longer than its
  max_new_tokens or hold what follows a stop.

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
        if self.finished():
            return
        pending = None
        if new_accepted_len > 0:
            pending, self.to_finish = self.to_finish, None
        stock(self, new_accepted_len)
        if new_accepted_len > 1 and self.finished():
            _end_at_the_first_end(stock, self, new_accepted_len)
        if pending is not None:  # the reason stays the abort, whatever the block holds; only its length was wanted
            self.finished_reason = pending
        if self.finished_len is not None:
            # Reasoning, where it is counted at all, begins with the answer's first token.
            self.reasoning_tokens = min(self.reasoning_tokens, self.finished_len)

    return update_finish_state


def _end_at_the_first_end(stock: Callable[..., None], req: Any, block: int) -> None:
    """Ask again after each token of the last `block`, until one ends the answer before the end that is already found."""
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    output, grammar, verdict = req.output_ids, req.grammar, (req.finished_reason, req.finished_len)
    end = len(output) if req.finished_len is None else req.finished_len
    if isinstance(req.finished_reason, FINISH_LENGTH):
        end += 1  # a stop at the length limit itself comes first; SGLang may have seen one behind it alone
    req.grammar = None  # it has seen the whole block, which SGLang cuts at its end
    try:
        for length in range(len(output) - block + 1, end):
            req.output_ids = output[:length]
            req.finished_reason = req.finished_len = None
            stock(req, 1)
            if req.finished():
                req.finished_len = length
                return
        req.finished_reason, req.finished_len = verdict
    finally:
        req.output_ids, req.grammar = output, grammar
