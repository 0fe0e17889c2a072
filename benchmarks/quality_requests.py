"""The requests of the suite ``quality``, the same for every arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsd_sglang.benchmarks import humaneval
from nsd_sglang.benchmarks.context import Context
from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.settings import Settings
from nsd_sglang.demo import prompts
from nsd_sglang.demo.cache import DemoError, default_cache_dir


@dataclass(frozen=True)
class Request:
    """suite: ``quality`` or ``humaneval``. prompt: number of the prompt or problem. problem: of HumanEval, else None."""

    suite: str
    prompt: int
    sample: int
    input_ids: list[int]
    sampling_params: dict[str, Any]
    problem: humaneval.Problem | None = None


def planned(context: Context) -> list[Request]:
    """All requests in the order in which they are sent: the samples of a prompt stand one behind the other.

    HumanEval is left out, with an entry in the context's failures, when its problems cannot be fetched.

    Raises:
        BenchError: a prompt without tokens.
    """
    settings = context.settings
    tokenizer = load_tokenizer(settings)
    # The answer may end where the model ends it: forced tokens behind the end say nothing about an arm.
    sampling = settings.sampling_params() | {"ignore_eos": False}
    made = []
    for number, text in enumerate(context.prompts(settings.quality_prompts) if settings.quality_prompts else []):
        # As the server does with a prompt's text; ids make sure that scoring sees the same ones.
        ids = list(tokenizer(text)["input_ids"])
        if not ids:
            raise BenchError(f"--dataset-path: prompt {number + 1} has no tokens")
        params = sampling | {"max_new_tokens": settings.quality_tokens}
        made += [Request("quality", number, sample, ids, params) for sample in range(settings.quality_samples)]
    if settings.humaneval_problems:
        try:
            problems = humaneval.load(prompts.prepare_problems(default_cache_dir()))[: settings.humaneval_problems]
        except (DemoError, BenchError, OSError) as error:
            context.failures.append(f"quality: HumanEval: {error}")
            context.say(f"FAILED  {context.failures[-1]}")
            return made
        params = sampling | {"max_new_tokens": settings.humaneval_tokens}
        if not tokenizer.chat_template:
            params |= {"stop": humaneval.STOP}
        for number, problem in enumerate(problems):
            ids = humaneval.prompt_ids(problem, tokenizer)
            made += [Request("humaneval", number, sample, ids, params, problem) for sample in range(settings.humaneval_samples)]
    return made


def load_tokenizer(settings: Settings):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(settings.tokenizer)


def chat_model(settings: Settings) -> bool:
    return bool(load_tokenizer(settings).chat_template)


def vocabulary(settings: Settings) -> int:
    """Size of the model's output distribution; the tokenizer's size where the configuration cannot be read."""
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(settings.model).get_text_config().vocab_size)
    except (OSError, ValueError, AttributeError):
        return len(load_tokenizer(settings))
