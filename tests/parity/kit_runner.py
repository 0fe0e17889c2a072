"""Runs SGLang's kits as they are against a server that already runs."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import time
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit_cases import Case, prompts


@dataclass(frozen=True)
class Outcome:
    """One test of a kit. status: passed, failed or skipped; message: the last line of what it raised."""

    kit: str
    profile: str
    test: str
    temperature: float
    status: str
    seconds: float
    message: str


def kit_class(case: Case, server: Any, url: str, model: str, **attributes: Any) -> type:
    """A unittest class of the kit's tests and of the helpers that SGLang's fixture for EAGLE servers lends its kits."""
    import openai
    from sglang.test.server_fixtures.spec_eagle_fixture import SpecEagleServerBase

    class Fixture(SpecEagleServerBase):
        """The fixture without its server: `server` is already there. First among the bases, so that no kit starts one."""

        @classmethod
        def setUpClass(cls):
            cls._tokenizer = None
            if hasattr(cls, "init_reasoning_token_verifier"):
                cls.init_reasoning_token_verifier()

        @classmethod
        def tearDownClass(cls):
            pass

    lent = {
        "base_url": url,
        "process": server.process,
        "model": model,
        "target_model": model,
        "served_model_name": model,
        "api_key": "none",
        "client": openai.Client(api_key="none", base_url=url + "/v1"),
    }
    kit = cache_hit_kit(model) if case.kit == "cache_hit_kit" else _load(case.kit, model)
    return type(case.kit.rpartition(".")[2], (Fixture, kit), {**lent, **case.attributes, **attributes})


def cache_hit_kit(model: str) -> type:
    """The one kit that is a function; its data set is replaced by a local one of random words."""

    class CacheHit:
        def test_multiturn_cache_hit(self):
            from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test

            run_multiturn_cache_hit_test(self.base_url, model, dataset_path=_random_conversations(), num_clients=8)

    return CacheHit


def _random_conversations() -> str:
    import random
    import tempfile

    words = random.Random(0)
    line = lambda n: " ".join(words.choice(("zebra", "quartz", "wizard", "fox", "jug", "vex")) for _ in range(n))
    talk = [{"conversations": [{"from": "human", "value": line(300)}, {"from": "gpt", "value": line(300)}]} for _ in range(64)]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(talk, file)
    return file.name


def _load(kit: str, model: str) -> type:
    module, _, name = kit.rpartition(".")
    if module == "kl_divergence_kit":
        from sglang.test import kl_test_utils as utils

        # Where the kit keeps what it has downloaded: its prompts come from there, and nothing is downloaded.
        key = f"{model}_{utils.DEFAULT_PROMPT_TOKENS}_{utils.DEFAULT_NUM_SAMPLES}"
        utils._cached_input_ids[key] = prompts(utils.DEFAULT_NUM_SAMPLES, 600)
    return getattr(importlib.import_module("sglang.test.kits." + module), name)


def names_of(cls: type, case: Case, temperature: float) -> list[str]:
    names = unittest.defaultTestLoader.getTestCaseNames(cls)
    names = [name for name in names if name not in case.absent]
    return [name for name in names if temperature == 0 or case.warm is None or name in case.warm]


def run(case: Case, cls: type, temperature: float, names: list[str], log: Path | None = None) -> list[Outcome]:
    """The kit's tests, one after another; what one that did not pass printed and raised goes to `log`."""
    outcomes = []
    for name in names:
        result, started = unittest.TestResult(), time.monotonic()
        with contextlib.redirect_stdout(printed := io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            unittest.TestSuite([cls(name)]).run(result)
        problems = result.errors + result.failures
        status = "failed" if problems else "skipped" if result.skipped else "passed"
        text = problems[0][1] if problems else result.skipped[0][1] if result.skipped else ""
        if log is not None and text:
            with open(log, "a") as file:
                file.write(f"==== {case.title} {case.profile} {name} temperature {temperature}\n{printed.getvalue()}\n{text}\n")
        outcomes.append(Outcome(case.title, case.profile, name, temperature, status, time.monotonic() - started, what_failed(text)))
    return outcomes


def what_failed(text: str) -> str:
    """The line of a traceback that says what was wrong; what SGLang's retry raises on top says nothing."""
    lines = [line for line in text.split("\nDuring handling of")[0].strip().splitlines() if line and not line.startswith((" ", "+", "?", "-"))]
    return lines[-1][:200] if lines else ""
