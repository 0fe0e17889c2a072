"""The prompts: bench_serving's datasets checked before any server starts, and HumanEval as the default.

bench_serving draws ``num_prompts`` of a file with its ``--seed``, so one seed and one number give every arm the same prompts
in the same order. It leaves out what it cannot use without a word; here that is an error.
"""

from __future__ import annotations

import json
from pathlib import Path

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import Settings

HUMAN_EVAL = "prompts.jsonl"
# With a fixed length the reference answer is not used, but bench_serving wants one.
NO_ANSWER = "(not used)"


def write_human_eval(path: Path, cache_dir: Path, tokenizer) -> None:
    """Write HumanEval's problems, in the chat format of ``tokenizer``, as a file of bench_serving's ``custom`` dataset.

    tokenizer: of transformers, with a chat template (else the problems' code alone is the prompt). Raises DemoError when
    the problems cannot be fetched.
    """
    from nsd_sglang.demo import prompts

    problems = prompts.load_problems(prompts.prepare_problems(cache_dir))
    # Formatted here: bench_serving's own --apply-chat-template removes the token that begins a text wherever it stands,
    # which for some models is the token that begins a turn.
    texts = prompts.chat_texts(problems, tokenizer) if tokenizer.chat_template else problems
    with open(path, "w", encoding="utf-8") as out:
        for text in texts:
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": NO_ANSWER}]
            out.write(json.dumps({"conversations": turns}) + "\n")


def read(dataset: str, path: Path) -> list[str]:
    """All prompts of a file of the dataset ``custom`` (JSON lines) or ``sharegpt`` (one JSON list).

    Raises BenchError, naming the file and the place, for an empty prompt, a file that cannot be read and one without a
    usable conversation.
    """
    if not path.is_file():
        raise BenchError(f"--dataset-path {path}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--dataset-path {path}: cannot be read as UTF-8 text: {error}") from None
    prompts = []
    for place, conversation in _conversations(dataset, path, text):
        turns = conversation.get("conversations", conversation.get("conversation")) if isinstance(conversation, dict) else None
        if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns[:2]):
            continue
        prompt = turns[0].get("value") if dataset == "sharegpt" else turns[0].get("content", turns[0].get("value"))
        if not isinstance(prompt, str) or not prompt.strip():
            raise BenchError(f"--dataset-path {path}, {place}: the prompt is empty; give every conversation a first turn of text")
        prompts.append(prompt)
    if not prompts:
        raise BenchError(
            f"--dataset-path {path}: no usable conversation; accepted for {dataset}: "
            + (
                'a JSON list of {"conversations": [{"value": PROMPT}, {"value": ANSWER}]}'
                if dataset == "sharegpt"
                else 'lines of {"conversations": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": ANSWER}]}'
            )
        )
    return prompts


def _conversations(dataset: str, path: Path, text: str):
    if dataset == "sharegpt":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise BenchError(f"--dataset-path {path}: this is no JSON: {error}") from None
        yield from ((f"conversation {i}", one) for i, one in enumerate(content if isinstance(content, list) else [], 1))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError:
                raise BenchError(f"--dataset-path {path}, line {number}: this is no JSON; give one object a line") from None


def check(dataset: str, path: Path | None, most: int) -> None:
    """Raise BenchError when ``path`` cannot give ``most`` prompts."""
    if dataset.startswith("random"):
        if path is not None:
            read("sharegpt", path)
        return
    if path is None:
        raise BenchError(f"--dataset {dataset}: give its file with --dataset-path")
    count = len(read(dataset, path))
    if count < most:
        raise BenchError(f"--num-prompts {most}: {path} has {count} usable prompts")


def prompts(settings: Settings, directory: Path) -> list[str]:
    """The dataset's prompts as text that a server tokenises itself; HumanEval's where bench_serving makes up its own."""
    if settings.dataset.startswith("random"):
        return read("custom", directory / HUMAN_EVAL)
    texts = read(settings.dataset, Path(settings.dataset_path))
    if not settings.apply_chat_template:
        return texts
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(settings.tokenizer)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True, tokenize=False)
        for t in texts
    ]
