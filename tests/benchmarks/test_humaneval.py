"""The program that is run for an answer, and the data that it is tested with."""

import gzip
import json

import pytest

from nsd_sglang.benchmarks import humaneval
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.humaneval import Problem

PROMPT = 'from math import floor\n\n\ndef helper(x):\n    return floor(x)\n\n\ndef add(a, b):\n    """Sum of the floors."""\n'
BODY = "    return helper(a) + helper(b)\n"
PROBLEM = Problem("HumanEval/0", PROMPT, "add", "def check(add):\n    assert add(1.5, 2) == 3\n", BODY)
WHOLE = "def add(a, b):\n" + BODY


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n```python\n{WHOLE}```\nIt adds.",
        f"```py\n{WHOLE}",
        f"``` \n{WHOLE}```",
        f"```python\nprint('an example')\n```\nand\n```python\n{WHOLE}```\n```python\nassert False\n```",
        f"```python\nfrom math import floor\n\n{WHOLE}```",
        f"```python\n{BODY}```",
        f"```python\n{PROMPT}{BODY}```",
        WHOLE,
        BODY,
    ],
)
def test_right_answers_pass_however_they_are_written(answer):
    outcome = humaneval.check(PROBLEM, answer)
    assert outcome.passed, (outcome.reason, humaneval.program(PROBLEM, answer))


@pytest.mark.parametrize("answer", ["", "I cannot do that.", "```python\ndef add(a, b):\n    return a\n```", f"```python\n{WHOLE}", "```python\n```"])
def test_other_answers_do_not(answer):
    passed = humaneval.check(PROBLEM, answer).passed
    assert passed == (WHOLE in answer)


def test_a_continuation_is_not_read_as_chat():
    assert humaneval.program(PROBLEM, BODY, chat=False) == PROMPT + BODY
    assert humaneval.check(PROBLEM, BODY, chat=False).passed


class Tokenizer:
    def __init__(self, chat_template):
        self.chat_template = chat_template

    def __call__(self, text):
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, turns, **_):
        return [0, *map(ord, turns[0]["content"])]


def test_prompts_of_chat_and_base_models():
    assert bytes(humaneval.prompt_ids(PROBLEM, Tokenizer(None))).decode() == PROMPT
    chat = humaneval.prompt_ids(PROBLEM, Tokenizer("yes"))
    assert chat[0] == 0 and PROMPT.strip() in bytes(chat[1:]).decode()


def test_only_the_known_file_is_read(tmp_path):
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(PROBLEM.__dict__ | {"more": 1}).encode() + b"\n"))
    assert humaneval.load(path, sha256=None) == [PROBLEM]
    with pytest.raises(BenchError, match="not the HumanEval file"):
        humaneval.load(path)
