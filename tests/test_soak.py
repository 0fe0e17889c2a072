"""A short soak: every kind of request at once, some aborted, under SGLang's strict memory checks. scripts/soak.py has the
long one."""

import random

import pytest
import torch

from soak import Soak, limits_of, log_errors, tiny_server
from soak_answers import Limits, stop_check
from soak_requests import make_case

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="its pool is sized for the CPU platform")

LIMITS = Limits(tokens=256, vocabulary=320, context=1024, threshold=0.9, epsilon=None, highest=1.0)


def test_a_short_soak(tmp_path):
    with tiny_server(tmp_path, []) as server:
        soak = Soak(server.url, limits_of(server.url), seed=3)
        assert soak.limits == LIMITS
        soak.run(80, concurrency=32)
        soak.finish()
        assert soak.failures + log_errors(server.log) == []
    assert soak.counts["answered"] > 50 and soak.counts["dropped"] and soak.counts["refused"]


def test_cases_are_decided_by_their_seed_and_cover_every_kind():
    cases = [make_case(random.Random(f"9 {i}"), LIMITS, 9) for i in range(400)]
    again = [make_case(random.Random(f"9 {i}"), LIMITS, 9) for i in range(400)]
    assert [case.body for case in cases] == [case.body for case in again]
    params = [case.body["sampling_params"] for case in cases if case.path == "/generate"]
    for key in ("json_schema", "regex", "stop", "top_k", "min_p", "presence_penalty", "logit_bias", "custom_params"):
        assert any(key in one for one in params), key
    assert {case.abort for case in cases} == {None, "abort", "drop"} and {case.status for case in cases} == {200, 400}
    assert {case.stream for case in cases} == {True, False} and max(case.n for case in cases) == 3


@pytest.mark.parametrize("change", [
    {"nsd_threshold": 0.9}, {"nsd_epsilon": 0.1}, {"nsd_rescued": 1}, {"completion_tokens": 2},
    {"finish_reason": {"type": "length"}}, {"finish_reason": {"type": "abort"}},
])
def test_an_answer_that_is_not_what_was_asked_for_is_seen(change):
    dice = random.Random(0)
    case = next(
        case for case in iter(lambda: make_case(dice, LIMITS, 9), None)
        if case.path == "/generate" and case.status == 200 and not case.abort
        and case.body["sampling_params"]["temperature"] == 0 and not case.body["sampling_params"].get("ignore_eos")
        and len(case.checks) == 1 and not case.body["sampling_params"].get("custom_params") and case.body["sampling_params"]["max_new_tokens"] == 5
    )
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": 3, "nsd_threshold": 0.0, "nsd_epsilon": None}
    meta |= {"nsd_tv_bound": 0.0, "nsd_rescued": 0, "nsd_agreement_bound": 1.0}
    case.checks[0]({"output_ids": [1, 2, 257], "text": "", "meta_info": meta})
    with pytest.raises(AssertionError):
        case.checks[0]({"output_ids": [1, 2, 257], "text": "", "meta_info": meta | change})


def test_only_an_aborted_answer_may_end_with_its_stop():
    check = stop_check(["ab"])
    check({"text": "xab", "meta_info": {"finish_reason": {"type": "abort"}}})
    for text, reason in (("xab", "stop"), ("xab", "length"), ("xabx", "abort"), ("abab", "abort")):
        with pytest.raises(AssertionError):
            check({"text": text, "meta_info": {"finish_reason": {"type": reason}}})
