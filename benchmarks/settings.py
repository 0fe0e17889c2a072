"""Everything a run depends on, as it is written to ``run.json`` and read back by ``--resume``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

# In the order in which they run.
SUITES = ("comparison", "ablation", "rules", "diagnostics", "quality")
KINDS = ("plain", "stock", "rejection", "nsd")
# random-ids makes prompts of random token ids, random of a ShareGPT file's text.
DATASETS = ("custom", "sharegpt", "random", "random-ids")


@dataclass(frozen=True)
class Settings:
    """Resolved settings of one run.

    model, draft, tokenizer: checkpoint folders or Hugging Face names; draft is None where the target drafts for itself.
    family: of the draft, ``eagle``, ``eagle3``, ``nextn`` or ``standalone``.
    kinds: which kinds of arm the comparison has, of ``KINDS``; ``rejection`` is stock rejection sampling.
    proposals: of NSD's arms, ``topk`` at every one of thresholds, ``sampled`` at every one of sampled_thresholds.
    candidates: of sampled proposals.
    num_steps, eagle_topk, num_draft_tokens: the tree of every speculating arm of the comparison.
    concurrency, num_prompts: in parallel, how many requests at a time and how many in all; ascending concurrency.
    ablation_concurrency: one of ``concurrency``, for the suites that measure at one alone.
    dataset, dataset_path: of bench_serving; apply_chat_template: it formats the prompts (they are plain text).
    input_len: tokens of a prompt of the dataset ``random``; output_len: tokens of every answer.
    stop_at_eos: an answer may end before output_len; otherwise it runs on, so that every arm makes the same number.
    temperature, request_body: of every request; request_body is merged into the body of ``/generate``.
    warm_up_requests: sent before every timed unit, to every arm alike.
    server_args: of launch_server, for every arm. environment: of every server.
    quality_prompts, quality_samples, quality_tokens: of the suite quality, the dataset's first prompts, answers to each, and tokens
    of an answer at most; humaneval_problems, humaneval_samples, humaneval_tokens: the same of HumanEval. 0 prompts leave it out.
    seed: of the prompts' order and of the servers' random numbers; repeat r (from 0) uses seed + r.
    """

    model: str
    draft: str | None
    tokenizer: str
    family: str
    kinds: list[str]
    thresholds: list[float]
    sampled_thresholds: list[float]
    proposals: list[str]
    candidates: int
    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    concurrency: list[int]
    num_prompts: list[int]
    ablation_concurrency: int
    repeats: int
    dataset: str
    dataset_path: str | None
    apply_chat_template: bool
    input_len: int
    output_len: int
    stop_at_eos: bool
    temperature: float
    request_body: dict[str, Any]
    warm_up_requests: int
    server_args: list[str]
    environment: dict[str, str]
    seed: int
    suites: list[str]
    quality_prompts: int = 24
    quality_samples: int = 1
    quality_tokens: int = 96
    humaneval_problems: int = 164
    humaneval_samples: int = 1
    humaneval_tokens: int = 512

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Settings:
        """Raises TypeError or KeyError when ``content`` was written by another version."""
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def sampling_params(self) -> dict[str, Any]:
        """The ``sampling_params`` of a ``/generate`` request, as bench_serving sends them."""
        own = {"temperature": self.temperature, "max_new_tokens": self.output_len, "ignore_eos": not self.stop_at_eos}
        return own | self.request_body.get("sampling_params", {})
