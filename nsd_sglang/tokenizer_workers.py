"""Plugins in SGLang's tokenizer workers (`--tokenizer-worker-num` above 1), processes in which SGLang itself loads none.

There every HTTP worker imports its application by the name in SGLANG_HTTP_SERVER_APP_PATH. For a server that asks for NSD
that name becomes `tokenizer_app`, which loads the plugins and hands out SGLang's own application.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "SGLANG_HTTP_SERVER_APP_PATH"
APP = "nsd_sglang.tokenizer_app:app"


def load_in_tokenizer_workers(server_args: Any) -> None:
    """Name our application in the environment that the workers inherit. An operator's own choice stays: those workers
    then answer without NSD's fields, and a wrong option leaves its request exact instead of HTTP 400."""
    if server_args.tokenizer_worker_num > 1:
        os.environ.setdefault(VARIABLE, APP)


def answers_unpacked(server_args: Any) -> bool:
    """Whether the processes that answer clients have plugins to unpack what the scheduler sends along."""
    return server_args.tokenizer_worker_num == 1 or os.environ.get(VARIABLE) == APP
