"""Per-request options: what is accepted, what is refused and how, and the arithmetic of budgets."""

import math
from types import SimpleNamespace

import pytest

from nsd_sglang.body import check_body, check_processor, check_seeded
from nsd_sglang.control import request_state
from nsd_sglang.options import NSDOptions, OptionError, from_namespace
from nsd_sglang.request import RequestControl, default_control, epsilon_for, request_control

OPEN = NSDOptions(threshold=0.8, max_threshold=1.0, think_ids=(7, 9))


def test_a_request_without_options_gets_the_servers():
    options = NSDOptions(threshold=0.7, epsilon=0.1, protect_stop=True, scope="thinking", think_ids=(7, 9))
    expected = RequestControl(0.7, 0.1, True, "thinking")
    assert request_control(None, None, options) == request_control({"other": 1}, 5, options) == expected
    assert request_control({"nsd_threshold": None}, None, options) == expected == default_control(options)


def test_a_request_sets_each_option():
    custom = {"nsd_threshold": 1, "nsd_epsilon": 0.05, "nsd_protect_stop": True, "nsd_scope": "thinking"}
    assert request_control(custom, None, OPEN) == RequestControl(1.0, 0.05, True, "thinking")


@pytest.mark.parametrize("key, value, accepted", [
    ("nsd_threshold", 1.01, "from 0 to 1"),
    ("nsd_threshold", -0.1, "from 0 to 1"),
    ("nsd_threshold", float("nan"), "from 0 to 1"),
    ("nsd_threshold", "0.5", "from 0 to 1"),
    ("nsd_threshold", True, "from 0 to 1"),
    ("nsd_threshold", [0.5], "from 0 to 1"),
    ("nsd_threshold", 10**400, "from 0 to 1"),
    ("nsd_epsilon", 2, "from 0 to 1"),
    ("nsd_agreement", 0, "above 0"),
    ("nsd_agreement", 1.5, "above 0"),
    ("nsd_protect_stop", 1, "true or false"),
    ("nsd_scope", "some", "all, thinking"),
    ("nsd_scope", ["all"], "all, thinking"),
])
def test_a_refusal_names_the_key_and_what_it_accepts(key, value, accepted):
    with pytest.raises(OptionError) as error:
        request_control({key: value}, 10, OPEN)
    assert key in str(error.value) and accepted in str(error.value) and "\n" not in str(error.value)


def test_unknown_keys_are_refused_and_other_peoples_keys_are_not():
    with pytest.raises(OptionError, match="nsd_treshold.*nsd_threshold"):
        request_control({"nsd_treshold": 0.5}, None, OPEN)
    assert request_control({"thinking_budget": 5}, None, OPEN) == default_control(OPEN)


def test_stricter_is_always_allowed_and_looser_is_not():
    server = NSDOptions(threshold=0.8, epsilon=0.1, protect_stop=True, scope="thinking", think_ids=(7, 9))
    stricter = {"nsd_threshold": 0.3, "nsd_epsilon": 0.01, "nsd_protect_stop": True, "nsd_scope": "thinking"}
    assert request_control(stricter, None, server) == RequestControl(0.3, 0.01, True, "thinking")
    for looser in ({"nsd_threshold": 0.81}, {"nsd_epsilon": 0.2}, {"nsd_protect_stop": False}, {"nsd_scope": "all"}):
        with pytest.raises(OptionError):
            request_control(looser, None, server)
    with pytest.raises(OptionError, match="--nsd-max-threshold"):
        request_control({"nsd_threshold": 0.9}, None, NSDOptions(threshold=0.5, max_threshold=0.8))


@pytest.mark.parametrize("tokens", [1, 7, 4096])
@pytest.mark.parametrize("agreement", [1e-9, 0.5, 0.999, 1.0])
def test_agreement_becomes_the_budget_of_the_theorem(agreement, tokens):
    epsilon = request_control({"nsd_agreement": agreement}, tokens, OPEN).epsilon
    assert epsilon == epsilon_for(agreement, tokens)
    assert math.isclose((1 - epsilon) ** tokens, agreement, rel_tol=1e-6)


def test_agreement_keeps_the_servers_budget_and_needs_a_length():
    assert request_control({"nsd_agreement": 0.01}, 1, NSDOptions(epsilon=0.1)).epsilon == 0.1
    for length in (None, 0, "5", True):
        with pytest.raises(OptionError, match="nsd_agreement needs max_new_tokens"):
            request_control({"nsd_agreement": 0.5}, length, OPEN)
    with pytest.raises(OptionError, match="both"):
        request_control({"nsd_agreement": 0.5, "nsd_epsilon": 0.5}, 5, OPEN)


def test_the_agreement_bound_of_an_answer():
    assert RequestControl(0.9, 0.1, False, "all").agreement_bound(3, 99.0) == pytest.approx(0.9**3)
    assert RequestControl(0.9, None, False, "all").agreement_bound(3, 0.25) == 0.75
    assert RequestControl(0.9, None, False, "all").agreement_bound(3, 7.0) == 0.0
    assert RequestControl(0.0, 0.1, False, "all").agreement_bound(3, 0.0) == 1.0


def test_a_request_that_only_fills_the_cache_keeps_its_options(caplog):
    params = SimpleNamespace(custom_params={"nsd_agreement": 0.5}, max_new_tokens=0, top_k=-1, stop_token_ids=None)
    state = request_state(SimpleNamespace(rid="r", sampling_params=params, eos_token_ids=(), tokenizer=None), NSDOptions())
    assert state.control.epsilon == 0.5 and state.control.threshold == 0.95 and not caplog.records


@pytest.mark.parametrize("environment, accepted", [
    ({"NSD_THRESHOLD": "0.9", "NSD_MAX_THRESHOLD": "0.5"}, "--nsd-threshold"),
    ({"NSD_EPSILON": "2"}, "from 0 to 1"),
    ({"NSD_THINK_IDS": "7"}, "START,END"),
    ({"NSD_THINK_IDS": "7,7"}, "START,END"),
    ({"NSD_THINK_IDS": "a,b"}, "START,END"),
    ({"NSD_SCOPE": "x"}, "all, thinking"),
    ({"NSD_REPORT": "maybe"}, "on or off"),
])
def test_the_servers_own_values_are_checked(environment, accepted):
    with pytest.raises(OptionError, match=accepted):
        from_namespace(None, environment)


def test_the_servers_values_are_read():
    environment = {"NSD_MAX_THRESHOLD": "1", "NSD_EPSILON": ".2", "NSD_PROTECT_STOP": "on", "NSD_THINK_IDS": "7,9", "NSD_REPORT": "off"}
    options = from_namespace(None, environment)
    assert (options.highest_threshold, options.epsilon, options.protect_stop, options.think_ids, options.report) == (1, 0.2, True, (7, 9), False)
    assert NSDOptions(threshold=0.6).highest_threshold == 0.6


def test_a_rival_rule_has_one_parameter_for_all_requests():
    options = NSDOptions(gate="top-m", gate_parameter=3.0, threshold=3.0)
    assert request_control({"nsd_epsilon": 0.1}, None, options).threshold == 3.0
    with pytest.raises(OptionError, match=r"nsd_threshold accepts nothing on this server \(--nsd-gate top-m\), got 0.5"):
        request_control({"nsd_threshold": 0.5}, None, options)


@pytest.mark.parametrize("custom", [{"nsd_threshold": -0.0}, {"nsd_epsilon": -0.0}, {"nsd_agreement": 1}])
def test_a_zero_has_no_sign(custom):
    control = request_control(custom, 8, OPEN)
    assert all(math.copysign(1, value) == 1 for value in (control.threshold, control.epsilon) if value is not None)


def test_a_body_of_another_kind_is_left_to_sglang():
    """An embedding request has no field for hidden states; SGLang says that the model makes no embeddings."""
    from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput

    check_body(EmbeddingReqInput(text="hi"), {}, {}, 320)
    with pytest.raises(OptionError, match="return_hidden_states"):
        check_body(GenerateReqInput(text="hi", return_hidden_states=3), {}, {}, 320)


@pytest.mark.parametrize("name, value", [("id", {"a": 1}), ("id", 5), ("rid", []), ("offset", "x"), ("offset", 2**70), ("replace", 3)])
def test_session_parameters_have_sglangs_types(name, value):
    """The scheduler looks its sessions up by id: one that cannot be a key ended it."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    from nsd_sglang.patches.request_body import parameter_fields

    check_body(GenerateReqInput(text="hi", session_params={"id": "s", "offset": -1}), *parameter_fields(), 320)
    with pytest.raises(OptionError, match=f"session_params.{name}"):
        check_body(GenerateReqInput(text="hi", session_params={name: value}), *parameter_fields(), 320)


def test_a_processor_that_cannot_be_loaded_is_refused():
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor, DisallowedTokensLogitsProcessor

    check_processor(DisallowedTokensLogitsProcessor.to_str(), CustomLogitProcessor.from_str)
    check_processor(None, CustomLogitProcessor.from_str)
    for wrong in ("garbage", "{}", '{"callable": "zz"}', 7, ["x"]):
        with pytest.raises(OptionError, match="custom_logit_processor"):
            check_processor(wrong, CustomLogitProcessor.from_str)
    with pytest.raises(OptionError, match="cannot be called"):
        check_processor("3", lambda text: 3)


def test_a_processor_that_the_server_does_not_enable_is_never_read(monkeypatch):
    """It is a pickle, which runs what it likes when it is read."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    from nsd_sglang.patches.request_options import validate_one_request

    read = []
    monkeypatch.setattr(CustomLogitProcessor, "from_str", lambda text: read.append(text) or (lambda: None))
    config = SimpleNamespace(vocab_size=10)
    args = SimpleNamespace(speculative_algorithm="NSD", _nsd_options=NSDOptions(), enable_deterministic_inference=False, rl_on_policy_target=None)
    manager = SimpleNamespace(server_args=args, model_config=config, preferred_sampling_params=None)
    body = SimpleNamespace(custom_logit_processor="pickle", sampling_params={})

    def refuses(*_):
        raise ValueError("not configured to enable custom logit processor")

    with pytest.raises(ValueError, match="not configured"):
        validate_one_request(refuses, manager, body, [1])
    assert read == []
    validate_one_request(lambda *_: None, manager, body, [1])
    assert read == ["pickle"]


def test_min_p_is_refused_where_the_seeded_sampler_would_end_the_scheduler():
    for params, deterministic in (({}, True), ({"min_p": None}, True), ({"min_p": 0.0}, True), ({"min_p": 0.1}, False)):
        check_seeded(params, deterministic)
    with pytest.raises(OptionError, match="min_p accepts 0"):
        check_seeded({"min_p": 0.1}, True)
