"""SGLang's tokenizer workers load NSD's plugins; a server of them is among scripts/serving_checks.py's modes."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nsd_sglang.tokenizer_workers import APP, VARIABLE, answers_unpacked, load_in_tokenizer_workers

HOOKED = (
    "from nsd_sglang.tokenizer_app import app\n"
    "from sglang.srt.entrypoints import http_server\n"
    "from sglang.srt.entrypoints.openai import serving_chat\n"
    "from sglang.srt.managers.multi_tokenizer_mixin import TokenizerWorker as Worker\n"
    "hooked = [Worker._validate_one_request, Worker.generate_request, Worker.update_request_meta_info]\n"
    "hooked += [serving_chat.spec_tokens_details_from_meta_info]\n"
    "assert app is http_server.app and all(hasattr(one, '__wrapped__') for one in hooked), hooked\n"
)


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that what a test sets is undone
    monkeypatch.delenv(VARIABLE)


def test_one_tokenizer_process_needs_nothing():
    load_in_tokenizer_workers(SimpleNamespace(tokenizer_worker_num=1))
    assert VARIABLE not in os.environ and answers_unpacked(SimpleNamespace(tokenizer_worker_num=1))


def test_several_get_the_application_that_loads_plugins():
    several = SimpleNamespace(tokenizer_worker_num=2)
    assert not answers_unpacked(several)
    load_in_tokenizer_workers(several)
    assert os.environ[VARIABLE] == APP and answers_unpacked(several)


def test_an_application_of_the_operators_stays(monkeypatch):
    several = SimpleNamespace(tokenizer_worker_num=2)
    monkeypatch.setenv(VARIABLE, "theirs:app")
    load_in_tokenizer_workers(several)
    assert os.environ[VARIABLE] == "theirs:app" and not answers_unpacked(several)


def test_that_application_is_sglangs_with_the_hooks_applied():
    # A worker is a child of the server, where SGLang's processes besides the tokenizer's get no such hooks.
    child = f"import multiprocessing as m; m.parent_process = lambda: 1\n{HOOKED}"
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
