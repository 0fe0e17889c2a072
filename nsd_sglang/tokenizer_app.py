"""SGLang's HTTP application for a tokenizer worker, with plugins loaded (see `tokenizer_workers`)."""

import sglang.srt.managers.tokenizer_manager  # noqa: F401  its presence tells plugins that this process answers clients
from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402

__all__ = ["app"]
