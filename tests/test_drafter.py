"""Choosing the drafter from checkpoint configurations."""

from types import SimpleNamespace

import pytest

from nsd_sglang import drafter
from nsd_sglang.options import OptionError

TARGET = SimpleNamespace(architectures=["LlamaForCausalLM"], vocab_size=1000)
MTP_TARGET = SimpleNamespace(architectures=["DeepseekV3ForCausalLM"], vocab_size=1000, num_nextn_predict_layers=1)


def config(architecture, **fields):
    return SimpleNamespace(architectures=[architecture], **{"vocab_size": 1000, **fields})


def resolve(requested="auto", path="draft", draft=None, target=TARGET):
    return drafter.resolve(requested, path, draft, "target", target)


@pytest.mark.parametrize(
    "draft, family, algorithm",
    [
        (config("LlamaForCausalLMEagle"), "eagle", "EAGLE"),
        (config("LlamaForCausalLMEagle3", draft_vocab_size=100), "eagle3", "EAGLE3"),
        (config("LlamaForCausalLM", draft_vocab_size=100), "eagle3", "EAGLE3"),
        (config("DeepseekV3ForCausalLMNextN"), "nextn", "EAGLE"),
        (config("Qwen3NextForCausalLMMTP"), "nextn", "EAGLE"),
        (config("Qwen3ForCausalLM"), "standalone", "STANDALONE"),
    ],
)
def test_family_is_read_off_the_checkpoint(draft, family, algorithm):
    chosen = resolve(draft=draft)
    assert (chosen.family, chosen.algorithm, chosen.path) == (family, algorithm, "draft")


def test_the_option_overrides_the_checkpoint():
    assert resolve("eagle", draft=config("MyHead")).algorithm == "EAGLE"
    assert resolve("nextn", draft=config("LlamaForCausalLMEagle")).algorithm == "EAGLE"  # one worker serves both


@pytest.mark.parametrize(
    "requested, draft, accepted",
    [
        ("eagle", config("LlamaForCausalLM"), "standalone"),
        ("standalone", config("LlamaForCausalLMEagle"), "eagle"),
        ("eagle", config("LlamaForCausalLMEagle3"), "eagle3"),
    ],
)
def test_an_option_that_contradicts_the_checkpoint_is_refused(requested, draft, accepted):
    with pytest.raises(OptionError, match=f"--nsd-drafter {requested} does not fit draft.*Accepted: auto, {accepted}$"):
        resolve(requested, draft=draft)


@pytest.mark.parametrize("path", [None, "target"])
def test_a_target_with_mtp_layers_drafts_for_itself(path):
    assert resolve(path=path, target=MTP_TARGET) == drafter.Drafter("nextn", "target")


def test_nextn_is_taken_at_its_word():
    assert resolve("nextn", path=None) == drafter.Drafter("nextn", "target")


def test_mtp_layers_are_found_in_a_text_config():
    nested = SimpleNamespace(architectures=["X"], text_config=SimpleNamespace(vocab_size=9, mtp_num_hidden_layers=1))
    assert drafter.bears_mtp(nested) and not drafter.bears_mtp(TARGET)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"path": None}, ("--speculative-draft-model-path is required", "no MTP layers", "Accepted: an EAGLE head")),
        ({"path": None, "requested": "eagle"}, ("--nsd-drafter eagle needs --speculative-draft-model-path",)),
        ({"draft": config("BertModel")}, ("--speculative-draft-model-path draft", "'BertModel'", "--nsd-drafter")),
        ({"draft": config("Gemma4AssistantForCausalLM")}, ("Gemma 4 assistant drafts are not supported",)),
        ({"draft": config("Qwen3ForCausalLM", vocab_size=7)}, ("vocabulary of 7 tokens, the target has 1000",)),
        ({"draft": config("LlamaForCausalLMEagle", vocab_size=7)}, ("vocabulary of 7 tokens, the target has 1000",)),
    ],
)
def test_what_cannot_draft_is_refused_by_name(arguments, words):
    with pytest.raises(OptionError) as error:
        resolve(**arguments)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def tokenizer(vocab):
    return SimpleNamespace(get_vocab=lambda: vocab)


def test_a_standalone_draft_needs_the_targets_token_ids():
    ours, theirs = tokenizer({"a": 0, "b": 1}), tokenizer({"a": 1, "b": 0})
    drafter.check_tokenizers("draft", ours, tokenizer({"b": 1, "a": 0}))
    drafter.check_tokenizers("draft", None, ours)
    with pytest.raises(OptionError, match="2 of 2 tokens other ids than the target's. Accepted: a draft with"):
        drafter.check_tokenizers("draft", theirs, ours)
