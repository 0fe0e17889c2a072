"""Structured output: no token of an answer, rescued or not, violates its grammar.

At threshold 1 the nucleus holds every token of positive probability, so a mask that reached the target's distribution at the
wrong node, or not at all, would show in the first answers of this random model, which knows no syntax of its own.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["alpha", "beta", "alphabet"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "code": {"type": "string", "pattern": "^[A-Za-z0-9]{4,12}$"},
    },
    "required": ["kind", "size", "tags", "code"],
    "additionalProperties": False,
}
REGEX = r"(ab|cd|abc){2,6}-[A-Za-z0-9+/]{3,12}(;|!!)"
EBNF = """
root ::= item ("; " item)? "."
item ::= colour " " name
colour ::= "red" | "green" | "redder"
name ::= [A-Za-z0-9+] [A-Za-z0-9+] [A-Za-z0-9+] [A-Za-z0-9+]? [A-Za-z0-9+]?
"""
EBNF_AS_REGEX = r"(red|green|redder) [A-Za-z0-9+]{3,5}(; (red|green|redder) [A-Za-z0-9+]{3,5})?\."


def is_json(text):
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


GRAMMARS = {
    "json_schema": (json.dumps(SCHEMA), is_json),
    "regex": (REGEX, lambda text: re.fullmatch(REGEX, text)),
    "ebnf": (EBNF, lambda text: re.fullmatch(EBNF_AS_REGEX, text)),
}


def body(kind=None, i=0, **sampling):
    sampling = {"temperature": 1, "max_new_tokens": 150, **sampling}
    if kind is not None:
        sampling[kind] = GRAMMARS[kind][0]
    return {"text": f"prompt {i}: ", "sampling_params": sampling}


def assert_ended(answer, kind):
    """The whole answer is in the language, and nothing follows its end."""
    assert GRAMMARS[kind][1](answer["text"]), answer["text"]
    assert answer["meta_info"]["finish_reason"]["type"] == "stop", answer
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])


def verified_tokens(trace, metas):
    """By request: how many tokens its verify steps kept, the prefill's and every bonus among them."""
    steps = {meta["id"]: meta["spec_verify_ct"] for meta in metas}
    kept = dict.fromkeys(steps, 1)
    for line in map(json.loads, trace.read_text().splitlines()[1:]):
        if steps.get(line["rid"], 0) > 0:  # overlap scheduling runs one step more than it needs
            steps[line["rid"]] -= 1
            kept[line["rid"]] += len(line["nodes"]) + (line["nodes"][-1]["kept"] is not None)
    return kept


@pytest.mark.parametrize("kind", GRAMMARS)
def test_greedy_answers_are_those_of_plain_decoding(kind, nsd, plain):
    bodies = [body(kind, i, temperature=0) for i in range(6)]
    expected = [answer["output_ids"] for answer in plain.generate_all(bodies)]
    answers = [nsd.generate(**one) for one in bodies[:2]] + nsd.generate_all(bodies[2:])
    assert [answer["output_ids"] for answer in answers] == expected
    for answer in answers:
        assert_ended(answer, kind)


def test_sampled_answers_stay_inside_and_end_inside_blocks(nsd, trace):
    kinds = [*GRAMMARS] * 40
    answers = nsd.generate_all([body(kind, i) for i, kind in enumerate(kinds)])
    for kind, answer in zip(kinds, answers):
        assert_ended(answer, kind)
    metas = [answer["meta_info"] for answer in answers]
    assert sum(meta["nsd_rescued"] for meta in metas) > 0
    # Tokens that the verifier kept and the grammar's end cut off again: the end fell inside a block.
    kept = verified_tokens(trace, metas)
    assert max(kept[meta["id"]] - meta["completion_tokens"] for meta in metas) > 0


def test_requests_of_every_grammar_and_of_none_share_batches(nsd):
    kinds = [*GRAMMARS, None] * 12
    bodies = [body(kind, i, **({"temperature": 0} if i % 5 == 0 else {})) for i, kind in enumerate(kinds)]
    answers = nsd.generate_all(bodies)
    for kind, answer in zip(kinds, answers):
        if kind is not None:
            assert_ended(answer, kind)


def test_an_answer_cut_by_its_length_is_the_beginning_of_one(nsd, plain):
    bodies = [body("regex", i, max_new_tokens=n, temperature=0) for i in range(2) for n in range(1, 6)]
    expected = [answer["output_ids"] for answer in plain.generate_all(bodies)]
    assert [answer["output_ids"] for answer in nsd.generate_all(bodies)] == expected
    for answer in nsd.generate_all([one | {"sampling_params": one["sampling_params"] | {"temperature": 1}} for one in bodies]):
        assert re.match(r"^(ab?c?|cd?)", answer["text"])


@pytest.mark.parametrize("thinking", [True, False])
def test_a_schema_binds_the_answer_behind_the_reasoning(thinking, nsd):
    """The grammar begins where the span ends, inside an accepted block as often as not."""
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    chat = {"model": "m", "max_tokens": 250, "temperature": 1, "response_format": schema}
    chat["chat_template_kwargs"] = {"enable_thinking": thinking}
    texts = []
    asks = [chat | {"messages": [{"role": "user", "content": f"go {i}"}]} for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda ask: nsd.post("/v1/chat/completions", **ask).json(), asks))
    for answer in answers:
        choice = answer["choices"][0]
        assert (answer["usage"]["reasoning_tokens"] > 0) == thinking
        if choice["finish_reason"] == "stop" and (choice["message"]["content"] or not thinking):
            texts.append(choice["message"]["content"])
    assert len(texts) >= 3
    assert all(is_json(text.strip()) for text in texts)
