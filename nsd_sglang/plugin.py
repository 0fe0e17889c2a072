"""Entry point `sglang.srt.plugins`: SGLang calls `load` once in every process before it parses server arguments."""

from __future__ import annotations

import logging
import multiprocessing
import sys

logger = logging.getLogger(__name__)


def load() -> None:
    """Register NSD, or say in one line why not and leave SGLang as it is.

    A command line that asks for NSD cannot be served then and ends with that line and exit code 2.
    """
    from nsd_sglang import seams

    reason = seams.first_drift()
    if reason is not None:
        message = f"NSD is not registered: {reason}. {seams.SUPPORTED}. Run `nsd-sglang check` for the whole table"
        if _asked_for():
            print(f"sglang: error: {message}", file=sys.stderr)
            raise SystemExit(2)
        logger.warning(message)
        return

    from nsd_sglang import algorithm
    from nsd_sglang.patches import (
        answer_report,
        command_line,
        cpu_plain_history,
        create_worker,
        overlap_schedule,
        request_body,
        request_options,
    )

    algorithm.register()
    command_line.install()
    create_worker.install()
    overlap_schedule.install()
    if "sglang.srt.managers.scheduler" in sys.modules:  # a scheduler process has it by now, others need not import it
        cpu_plain_history.install()
    if _answers_clients():
        request_body.install()
        request_options.install()
        answer_report.install()


def _answers_clients() -> bool:
    """Whether this process may hold SGLang's TokenizerManager; the processes that it starts (schedulers, detokenizer)
    need not import it."""
    return multiprocessing.parent_process() is None or "sglang.srt.managers.tokenizer_manager" in sys.modules


def _asked_for() -> bool:
    words = [word.upper() for word in sys.argv]
    return "--SPECULATIVE-ALGORITHM=NSD" in words or any(
        name in ("--SPECULATIVE-ALGORITHM", "--SPECULATIVE-ALGO") and value == "NSD"
        for name, value in zip(words, words[1:])
    )
