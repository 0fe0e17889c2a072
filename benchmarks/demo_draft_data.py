"""What the demo's drafts learn from: answers that the chat model itself writes, with its hidden states beside them.

Prompts are made offline from Python's standard library (functions to complete, code to explain, questions about its
documentation) and from general chat requests. HumanEval, which the demo measures on, is held out: its problems are used only
in the split "humaneval" for measuring, and library functions that carry one of its names are left out of training.
Answers are sampled at temperature 1 from the full distribution, in bfloat16, up to the end token or ``ANSWER_TOKENS``.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch
from demo_draft_models import Decoder
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from nsd_sglang.demo.prompts import REQUEST, load_problems

ANSWER_TOKENS = 160
PROMPT_TOKENS = 200
BATCH_ROWS = 96
SPLITS = ("train", "chat", "humaneval")
# Rows of the held-out splits.
HELD_OUT_ROWS = 64

COMPLETE = (
    REQUEST,
    REQUEST,
    "Write the body of this function:\n{code}",
    "Implement this Python function and return only the code.\n\n{code}",
    "Please finish the code below.\n\n```python\n{code}\n```",
    "Can you solve this in Python?\n{code}",
)
EXPLAIN = (
    "Explain what this code does.\n\n```python\n{code}\n```",
    "Find a bug or a weakness in this function:\n{code}",
    "Rewrite this Python code so that it is easier to read.\n\n{code}",
    "Write unit tests for this function.\n\n```python\n{code}\n```",
)
ASK = (
    "Explain this in simple words: {text}",
    "Summarise the following text in two sentences.\n\n{text}",
    "Give an example for this statement from the Python documentation: {text}",
    "Rewrite this text for a beginner.\n\n{text}",
)
CHAT = (
    "What is {topic}?",
    "Write a short story about {topic}.",
    "Give me five facts about {topic}.",
    "Explain {topic} to a ten year old.",
    "Write an email to a colleague about {topic}.",
    "What are the advantages and disadvantages of {topic}?",
    "How do I get started with {topic}? Answer step by step.",
    "Write a Python program that has to do with {topic}.",
)
TOPICS = (
    "photosynthesis,the French Revolution,sorting algorithms,a lighthouse,prime numbers,machine learning,baking bread,the water "
    "cycle,chess,gravity,a lost dog,binary search trees,renewable energy,the stock market,jazz music,volcanoes,a school trip,"
    "probability,healthy sleep,public transport,the Roman Empire,regular expressions,gardening,black holes,remote work,electric "
    "cars,the human heart,matrix multiplication,a dragon,coffee,climate change,recursion,ocean currents,learning a language,"
    "time management,vaccines,hash tables,poetry,the moon landing,budget planning,a robot,dinosaurs,string formatting,football,"
    "databases,friendship,unit testing,earthquakes,vegetarian cooking,fractions,the internet,bees,leap years,a job interview,"
    "palindromes,photography,antibiotics,linear equations,a mystery in a library,temperature conversion,running,shopping lists,"
    "graph theory,ancient Egypt,the Fibonacci sequence,solar panels,password security,rainforests,bank accounts,a birthday party"
).split(",")


@dataclass(frozen=True)
class Answers:
    """Rows of one split, one after the other: row i is ``[starts[i], starts[i + 1])``.

    tokens    int64 [S]       prompt and answer; the token sampled last is left out, it was never read by the target
    features  bfloat16 [S, 4 D]  EAGLE-3's three states, then the last hidden state after the final norm
    starts    int64 [rows + 1]
    prompts   int64 [rows]    length of a row's prompt
    """

    tokens: Tensor
    features: Tensor
    starts: Tensor
    prompts: Tensor

    def batch(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Rows padded on the right: tokens [B, T], features [B, T, 4 D], and answered [B, T]: 1 where the position's next
        token belongs to the answer, 0 in the prompt, -1 behind the row's end."""
        spans = [slice(int(self.starts[row]), int(self.starts[row + 1])) for row in rows]
        length = max(span.stop - span.start for span in spans)
        tokens = torch.zeros(len(rows), length, dtype=torch.long)
        features = torch.zeros(len(rows), length, self.features.shape[1], dtype=self.features.dtype)
        answered = torch.full((len(rows), length), -1)
        for index, (row, span) in enumerate(zip(rows, spans)):
            size = span.stop - span.start
            tokens[index, :size] = self.tokens[span]
            features[index, :size] = self.features[span]
            answered[index, :size] = (torch.arange(size) >= self.prompts[row] - 1).long()
        return tokens, features, answered


def library_code(library: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """From the Python files of ``library``: (name, signature with docstring) of documented functions; whole short functions."""
    stubs, functions = [], []
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "dist-packages"} & set(path.parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = source.splitlines()
        for node in nodes:
            if node.body[0].lineno == node.lineno:
                continue
            if 5 <= node.end_lineno - node.lineno <= 18:
                functions.append(textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])))
            if len(ast.get_docstring(node) or "") >= 50:
                stubs.append((node.name, textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno]))))
    return stubs, functions


def build_requests(count: int, rng: random.Random, held_out_names: set[str]) -> list[str]:
    """``count`` distinct requests in random order, none about a function whose name is in ``held_out_names``."""
    from pydoc_data import topics

    stubs, functions = library_code(Path(sysconfig.get_path("stdlib")))
    stubs = [code for name, code in stubs if name not in held_out_names]
    functions = [code for code in functions if not set(re.findall(r"def (\w+)", code)) & held_out_names]
    paragraphs = [part for text in topics.topics.values() for part in text.split("\n\n")]
    paragraphs = [" ".join(part.split()) for part in paragraphs if 120 < len(part) < 500]
    makers = (
        (0.55, lambda: rng.choice(COMPLETE).format(code=rng.choice(stubs))),
        (0.15, lambda: rng.choice(EXPLAIN).format(code=rng.choice(functions))),
        (0.10, lambda: rng.choice(ASK).format(text=rng.choice(paragraphs))),
        (0.20, lambda: rng.choice(CHAT).format(topic=rng.choice(TOPICS))),
    )
    requests: dict[str, None] = {}
    while len(requests) < count:
        (make,) = rng.choices([make for _, make in makers], [share for share, _ in makers])
        requests[make()] = None
    return list(requests)


def prompts_by_split(rows: int, seed: int, tokenizer, problems: list[str]) -> dict[str, list[list[int]]]:
    """Token ids of the prompts of each split, chat template applied; ``problems`` are HumanEval's."""
    names = {name for problem in problems for name in re.findall(r"def (\w+)", problem)}
    requests = build_requests(2 * (rows + HELD_OUT_ROWS), random.Random(seed), names)
    encode = lambda text: list(  # noqa: E731
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
    )
    prompts = [ids for ids in map(encode, requests) if len(ids) <= PROMPT_TOKENS][: rows + HELD_OUT_ROWS]
    measured = [encode(REQUEST.format(code=problem.strip())) for problem in problems]
    measured = [ids for ids in measured if len(ids) <= PROMPT_TOKENS][:HELD_OUT_ROWS]
    return {"chat": prompts[:HELD_OUT_ROWS], "humaneval": measured, "train": prompts[HELD_OUT_ROWS:]}


@torch.inference_mode()
def answer(target: Decoder, prompts: list[list[int]], end: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Sample an answer to each prompt. Returns the fields of `Answers`, ``starts`` replaced by ``sizes`` [rows]."""
    longest = max(map(len, prompts))
    width, total = 4 * target.config["hidden_size"], longest + ANSWER_TOKENS
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    tokens = torch.zeros(len(prompts), total, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) : longest] = torch.tensor(prompt)
    features = torch.zeros(len(prompts), total, width, dtype=torch.bfloat16)
    ends = torch.full((len(prompts),), total)
    alive = torch.arange(len(prompts))
    cache = [_Cache(total) for _ in target.layers]
    begin, stop = 0, longest
    for stop in range(longest, total):
        slots = torch.arange(stop)
        # Padding stands on the left, so that all rows decode at the same slot.
        visible = (slots >= pads[alive, None])[:, None, None] & (slots <= torch.arange(begin, stop)[:, None])
        # A padding query sees itself: a row without any key would be NaN.
        visible |= torch.eye(stop, dtype=torch.bool)[begin:stop]
        for entry in cache:
            entry.mask = visible
        positions = (torch.arange(begin, stop) - pads[alive, None]).clamp(min=0)
        last, aux = target(tokens[alive, begin:stop], positions, cache)
        features[alive, begin:stop] = torch.cat([aux, last], -1).bfloat16()
        cumulative = (last[:, -1] @ target.embed_tokens.weight.T).float().softmax(-1).cumsum(-1)
        coins = torch.rand(len(alive), 1, generator=generator) * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the coin; rounding must not lead behind the last one.
        drawn = torch.searchsorted(cumulative, coins, right=True).flatten().clamp(max=cumulative.shape[1] - 1)
        tokens[alive, stop] = drawn
        finished = drawn == end
        ends[alive[finished]] = stop
        begin = stop
        running = (ends[alive] > stop).nonzero().flatten()
        if len(running) < 0.85 * len(alive):
            alive = alive[running]
            for entry in cache:
                entry.keep(running)
            if not len(alive):
                break
    ends = ends.clamp(max=total - 1)
    spans = [slice(int(pad), int(stop)) for pad, stop in zip(pads, ends)]
    return {
        "tokens": torch.cat([tokens[row, span] for row, span in enumerate(spans)]),
        "features": torch.cat([features[row, span] for row, span in enumerate(spans)]),
        "sizes": ends - pads,
        "prompts": longest - pads,
    }


class _Cache:
    """Keys and values of one layer [rows, heads, slots, head]; called as that layer's attention, it appends and attends."""

    def __init__(self, slots: int):
        self.slots, self.used, self.keys, self.values, self.mask = slots, 0, None, None, None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.keys is None:
            shape = (*k.shape[:2], self.slots, k.shape[3])
            self.keys, self.values = k.new_zeros(shape), v.new_zeros(shape)
        begin, self.used = self.used, self.used + k.shape[2]
        self.keys[:, :, begin : self.used] = k
        self.values[:, :, begin : self.used] = v
        keys, values = self.keys[:, :, : self.used], self.values[:, :, : self.used]
        mask, groups = self.mask, q.shape[1] // k.shape[1]
        if q.shape[2] == 1:
            # One query a row: the query heads of a group become queries of their key head, so that keys are read once.
            grouped = q.reshape(q.shape[0], k.shape[1], groups, q.shape[3])
            out = torch.nn.functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            return out.reshape(q.shape)
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[rows], self.values[rows]


def prepare_answers(data: Path, target: Decoder, tokenizer, problem_file: Path, rows: int, seed: int) -> dict[str, Answers]:
    """The three splits, sampled on first use and kept in ``data``, one file a batch; the three trainings share them."""
    batches = answer_batches(prompts_by_split(rows, seed, tokenizer, load_problems(problem_file)), rows, seed)
    data.mkdir(parents=True, exist_ok=True)
    for number, (name, group) in enumerate(tqdm(batches, desc="sampling answers", unit="batch", mininterval=10)):
        write_answers(data / name, target, group, tokenizer.eos_token_id, 1000 * seed + number)
    return {split: _joined([data / name for name, _ in batches if name.startswith(split)]) for split in SPLITS}


def answer_batches(prompts: dict[str, list[list[int]]], rows: int, seed: int) -> list[tuple[str, list[list[int]]]]:
    """File name and prompts of every batch. Prompts of similar length share one: little padding."""
    batches = []
    for split, group in prompts.items():
        ordered = sorted(group, key=len)
        for number, begin in enumerate(range(0, len(ordered), BATCH_ROWS)):
            batches.append((f"{split}-{rows}-{seed}-{number:03}.safetensors", ordered[begin : begin + BATCH_ROWS]))
    return batches


def write_answers(file: Path, target: Decoder, prompts: list[list[int]], end: int, seed: int) -> None:
    """Sample one batch into ``file``, if it is not there yet."""
    if not file.exists():
        partial = file.with_suffix(".partial")
        save_file(answer(target, prompts, end, torch.Generator().manual_seed(seed)), partial)
        partial.rename(file)


def _joined(files: list[Path]) -> Answers:
    parts = [load_file(file) for file in files]
    sizes = torch.cat([part["sizes"] for part in parts])
    return Answers(
        torch.cat([part["tokens"] for part in parts]),
        torch.cat([part["features"] for part in parts]),
        torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
        torch.cat([part["prompts"] for part in parts]),
    )
