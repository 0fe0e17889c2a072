"""Which of SGLang's server kits are run, against which server, and why the others are not.

A kit is a mixin of test methods that SGLang ships in `sglang.test.kits`. Nothing in it is changed: the case class below lends
it a running server in place of the one that SGLang's fixture would start, and sets the attributes that each of SGLang's own
test classes sets (model, thresholds of a model, sizes).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Profile:
    """A server. model: `demo` (SmolLM2-135M-Instruct and its EAGLE head), `self` (the same model as its own standalone draft:
    drafts of the best quality), `wide` (tiny random models with SmolLM2's tokenizer) or `thinking` (tiny random models that
    write think tags)."""

    model: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


BASE = ("--max-running-requests", "40", "--max-total-tokens", "40000", "--chunked-prefill-size", "1024")
CAPPED = ("--max-running-requests", "1", "--max-total-tokens", "20000")
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
# What SGLang's class for the leak kit starts: contexts of 512 tokens, pages of 256.
LEAK = ("--context-length", "512", "--page-size", "256", "--chunked-prefill-size", "4096", "--max-total-tokens", "20480")

PROFILES = {
    "demo": Profile("demo", BASE),
    "self": Profile("self", BASE),
    "wide": Profile("wide", (*BASE, "--enable-return-hidden-states"), STRICT),
    "sessions": Profile("wide", (*BASE, "--enable-streaming-session"), STRICT),
    "leak": Profile("wide", ("--enable-streaming-session", *LEAK), STRICT),
    "waiting": Profile("wide", CAPPED, {"SGLANG_REQ_WAITING_TIMEOUT": "0.05"}),
    "running": Profile("wide", BASE, {"SGLANG_REQ_RUNNING_TIMEOUT": "3"}),
    "thinking": Profile("thinking", ("--reasoning-parser", "qwen3", "--max-total-tokens", "12000")),
}


@dataclass(frozen=True)
class Case:
    """One kit on one server.

    kit: module and class in `sglang.test.kits`. warm: the tests that also mean something at temperature 1 (None: all);
    the others ask for what only the most likely answer says. absent: tests that cannot be asked here, with the reason.
    variant: names what `attributes` change of the kit's own question.
    """

    kit: str
    profile: str
    warm: tuple[str, ...] | None = None
    attributes: dict = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    variant: str = ""

    @property
    def title(self) -> str:
        return self.kit + (f", {self.variant}" if self.variant else "")


NONE = ()
# The kit's own schema leaves name and population without an end, and the demo's model writes digits up to the limit of 128
# tokens. An answer to this one ends in time whatever the model.
BOUNDED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^\w{1,20}$"},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
    },
    "required": ["name", "population"],
    "additionalProperties": False,
}


def prompts(count: int, length: int) -> list[list[int]]:
    """Random token ids, in place of LongBench's texts."""
    draws = random.Random(0)
    return [[draws.randint(1, 30000) for _ in range(length)] for _ in range(count)]


KL = {"kl_div_thres": 0.003, "kl_div_max_samples": 8, "kl_div_prefill_max_new_tokens": 96, "kl_div_decode_max_new_tokens": 96}
# The fifth, test_logprob_mixed, expects the most likely tokens.
WARM_LOGPROBS = (
    *("test_logprob_start_len", "test_logprob_match", "test_logprob_decode_match_prefill", "test_token_ids_logprob_ragged"),
)
# Few and small enough for the suite, on the server of this folder's other tests.
SUITE = (
    Case("spec_server_kits.SpecPenaltyKit", "thinking"),
    Case("spec_server_kits.SpecHiddenStatesKit", "thinking"),
    Case("abort_timeout_kit.AbortAllMixin", "thinking", attributes={"abort_all_max_new_tokens": 900}),
    Case("regex_constrained_kit.RegexConstrainedMixin", "thinking"),
)
CASES = (
    Case("basic_api_contract_kit.BasicAPIContractMixin", "wide"),
    Case("spec_server_kits.SpecHiddenStatesKit", "wide"),
    Case("spec_server_kits.SpecPenaltyKit", "wide"),
    Case("spec_server_kits.SpecLogprobKit", "wide", WARM_LOGPROBS),
    Case("spec_server_kits.SpecSamplingMaskKit", "wide", NONE),
    Case("spec_server_kits.SpecFeatureKit", "wide", ("test_radix_attention", "test_request_abort")),
    Case("abort_timeout_kit.AbortAllMixin", "wide"),
    Case("pause_generation_kit.PauseResumeInPlaceMixin", "wide"),
    Case("matched_stop_kit.MatchedStopMixin", "demo", ("test_finish_stop_str", "test_finish_stop_regex_str", "test_finish_length")),
    Case("abort_timeout_kit.WaitingTimeoutMixin", "waiting"),
    Case("abort_timeout_kit.RunningTimeoutTwoWaveMixin", "running"),
    Case("streaming_session_kit.StreamingSessionKitMixin", "sessions"),
    Case("streaming_session_kit.AbortLeakReproKitMixin", "leak"),
    Case("reasoning_kit.ReasoningTokenUsageMixin", "thinking", attributes={"reasoning_parser_name": "qwen3"}),
    Case("reasoning_kit.SeparateReasoningMixin", "thinking"),
    Case("cache_hit_kit", "wide"),
    Case(
        "unified_radix_cache_kit.UnifiedRadixTreeTestMixin",
        "wide",
        NONE,
        {"input_ids": prompts(4, 600), "max_new_tokens": 96},
        {"test_gsm8k": "grades GSM8K from the network"},
        "which asks at T = 1 itself",
    ),
    Case("kl_divergence_kit.KLDivergenceMixin", "wide", NONE, KL, variant="which asks at T = 1 itself"),
    Case("spec_server_kits.SpecParityKit", "demo", NONE),
    Case("spec_server_kits.SpecGrammarKit", "demo", NONE),
    Case("spec_server_kits.SpecFeatureKit", "demo", ("test_request_abort",)),
    Case("basic_decode_correctness_kit.BasicDecodeCorrectnessMixin", "demo", ("test_ascii_ratio", "test_max_token_one")),
    Case("basic_scheduler_stress_kit.BasicSchedulerStressMixin", "demo", ("test_long_prompt",)),
    Case("ebnf_constrained_kit.EBNFConstrainedMixin", "demo"),
    Case("regex_constrained_kit.RegexConstrainedMixin", "demo"),
    Case("json_constrained_kit.JSONConstrainedMixin", "demo", NONE),
    Case("json_constrained_kit.JSONConstrainedMixin", "demo", attributes={"json_schema": json.dumps(BOUNDED)}, variant="bounded schema"),
    Case("json_mode_kit.JSONModeMixin", "demo", NONE),
    Case("anthropic_messages_kit.AnthropicMessagesMixin", "demo"),
    Case("spec_server_kits.SpecCorrectnessKit", "demo", ("test_eos_token", "test_first_token_finish")),
    Case("spec_server_kits.SpecCorrectnessKit", "self", ("test_eos_token", "test_first_token_finish")),
)

SUMS = "a model of 135 M parameters does not multiply 17 by 23: plain decoding gives the same wrong answers"
DIGITS = "the demo's model answers `\"population\": 1000000...` up to the kit's limit of 128 tokens, so the JSON is cut off"
# Why a test fails here, where its own words do not say it; by kit and test.
REASONS = {
    "spec_server_kits.SpecSamplingMaskKit.test_sampling_mask": "SGLang 0.5.23 refuses `return_sampling_mask` (HTTP 400) with every "
    "speculative algorithm but DFLASH (`speculative/spec_sampling_mask.py`)",
    "json_constrained_kit.JSONConstrainedMixin.test_json_generate": DIGITS,
    "json_constrained_kit.JSONConstrainedMixin.test_mix_json_and_other": DIGITS,
    "basic_decode_correctness_kit.BasicDecodeCorrectnessMixin.test_basic_math": SUMS,
    "basic_scheduler_stress_kit.BasicSchedulerStressMixin.test_concurrent_requests": SUMS,
    "ebnf_constrained_kit.EBNFConstrainedMixin.test_ebnf_generate_custom_log_format": "drawn at temperature 0.5 also at T = 0, and "
    "cut off at the kit's 128 tokens within `[a-z]+`; of 48 such answers 46 ended in time with NSD at 0.95, 43 with plain decoding",
    "ebnf_constrained_kit.EBNFConstrainedMixin.test_ebnf_generate_complex_json": "the answer keeps to the grammar, which lets the "
    "names come in any order and number; the kit's pattern wants each once, which this model does not do at temperature 1",
    "anthropic_messages_kit.AnthropicMessagesMixin.test_count_tokens_with_system": "nothing is generated: the chat template of "
    "SmolLM2 puts a system message of its own where a request has none, so another one need not add tokens",
}
