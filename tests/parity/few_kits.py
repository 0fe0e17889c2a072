"""A few of SGLang's own server kits, unchanged, at temperature 0 and 1; `scripts/sglang_kits.py` runs the others."""

import contextlib

import pytest

from kit_cases import SUITE
from kit_proxy import at_temperature, proxy
from kit_runner import kit_class, run, names_of

# They wait for a text without an end to end by chance.
ENDLESS = ("complex_json", "custom_log_format")


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("case", SUITE, ids=lambda case: case.kit.rpartition(".")[2])
def test_kit(case, temperature, nsd, models):
    with proxy(nsd.url, temperature) if temperature else contextlib.nullcontext(nsd.url) as url:
        cls = kit_class(case, nsd, url, models.target)
        names = [name for name in names_of(cls, case, temperature) if not any(word in name for word in ENDLESS)]
        outcomes = run(case, cls, temperature, names)
    assert outcomes and [one for one in outcomes if one.status != "passed"] == []


def test_a_failing_kit_is_seen(nsd, models):
    """The runner reports what a kit's assertion raised."""
    case = SUITE[0]

    def test_penalty_mixed(self):
        self.assertEqual(self.base_url, "elsewhere")

    cls = kit_class(case, nsd, nsd.url, models.target, test_penalty_mixed=test_penalty_mixed)
    (outcome,) = run(case, cls, 0, ["test_penalty_mixed"])
    assert outcome.status == "failed" and "elsewhere" in outcome.message


def test_the_temperature_of_every_request_is_raised():
    generate, chat = "/generate", "/v1/chat/completions"
    assert at_temperature(generate, {"text": "a"}, 1) == {"text": "a", "sampling_params": {"temperature": 1}}
    batch = {"sampling_params": [{"temperature": 0}, {"max_new_tokens": 3}]}
    raised = [{"temperature": 1}, {"max_new_tokens": 3, "temperature": 1}]
    assert at_temperature(generate, batch, 1) == {"sampling_params": raised}
    assert at_temperature(chat, {"temperature": 0, "messages": []}, 1) == {"temperature": 1, "messages": []}
    assert at_temperature("/abort_request", {"rid": "x"}, 1) == {"rid": "x"}
    assert at_temperature(generate, [1], 1) == [1]
