"""Reasoning and tool calls as the parsers of plain decoding see them, and what they count."""

import json

import pytest

TOOL_OF_ANY = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "twice": {"type": "boolean"}},
            "required": ["colour", "twice"],
            "additionalProperties": False,
        },
    },
}
TOOL = {"type": "function", "function": TOOL_OF_ANY["function"] | {"strict": True}}


@pytest.mark.parametrize("thinking", [True, False])
def test_reasoning(thinking, nsd, plain):
    """Tokens and text inside the span, whole and streamed, greedy; the span's end falls inside accepted blocks."""
    spans = 0
    for i in range(3):
        chat = {"model": "m", "messages": [{"role": "user", "content": f"What is {i}?"}], "max_tokens": 50, "temperature": 0}
        chat |= {"chat_template_kwargs": {"enable_thinking": thinking}, "ignore_eos": True}
        one, other = (server.post("/v1/chat/completions", **chat).json() for server in (nsd, plain))
        assert one["usage"]["reasoning_tokens"] == other["usage"]["reasoning_tokens"]
        assert (one["usage"]["reasoning_tokens"] > 0) == thinking
        assert one["choices"] == other["choices"]
        spans += bool(one["choices"][0]["message"]["content"]) and thinking
        chunks = nsd.stream("/v1/chat/completions", **chat, stream_options={"include_usage": True})
        assert chunks[-1]["usage"]["reasoning_tokens"] == one["usage"]["reasoning_tokens"]
        for field in ("content", "reasoning_content"):
            text = "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])
            assert text.strip() == (one["choices"][0]["message"].get(field) or "").strip()
        joined = nsd.post("/v1/chat/completions", **chat, separate_reasoning=False).json()["choices"][0]["message"]
        assert not joined.get("reasoning_content") and joined["content"]
    assert spans > 0 or not thinking


def test_reasoning_cut_by_the_length_of_the_answer(nsd, plain):
    """An answer that ends inside its span and inside a block has as many reasoning tokens as tokens."""
    asks = [
        {"text": f"go {i}\n<think>\n", "require_reasoning": True, "sampling_params": {"max_new_tokens": n, "temperature": 0}}
        for i in range(3)
        for n in range(1, 9)
    ]
    expected = [answer["meta_info"]["reasoning_tokens"] for answer in plain.generate_all(asks)]
    assert [answer["meta_info"]["reasoning_tokens"] for answer in nsd.generate_all(asks)] == expected
    assert max(expected) == 8


def test_reasoning_tokens_end_with_the_end_token(nsd):
    """Sampled: the count is the place of the first end token among the tokens that were emitted."""
    from kit_models import THINK_IDS

    ask = {"text": "go\n<think>\n", "require_reasoning": True, "sampling_params": {"max_new_tokens": 200, "temperature": 1}}
    answers = nsd.generate_all([ask] * 16)
    ended = [answer for answer in answers if THINK_IDS[1] in answer["output_ids"]]
    assert ended
    for answer in ended:
        assert answer["meta_info"]["reasoning_tokens"] == answer["output_ids"].index(THINK_IDS[1]) + 1


def test_tool_calls(nsd, plain):
    """A call of a named function: greedy as plain decoding makes it, sampled one that the schema allows."""
    for i in range(4):
        chat = {"model": "m", "messages": [{"role": "user", "content": f"paint {i}"}], "max_tokens": 120, "temperature": 0}
        chat |= {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "paint"}}}
        chat |= {"chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": False}
        one, other = (server.post("/v1/chat/completions", **chat).json()["choices"][0] for server in (nsd, plain))
        assert one["finish_reason"] == other["finish_reason"] == "tool_calls", (one, other)
        calls = [[call["function"] for call in choice["message"]["tool_calls"]] for choice in (one, other)]
        assert calls[0] == calls[1] and calls[0]
        sampled = nsd.post("/v1/chat/completions", **(chat | {"temperature": 1})).json()["choices"][0]
        if sampled["finish_reason"] != "length":
            for call in sampled["message"]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                assert call["function"]["name"] == "paint"
                assert arguments["colour"] in ("red", "green") and isinstance(arguments["twice"], bool)


@pytest.mark.parametrize("streamed", [False, True])
def test_tool_calls_that_the_parser_finds_in_the_text(streamed, nsd, plain):
    """A random model makes no calls of its own: an expression binds it to the syntax of one. Parsed out of text that comes
    in blocks, its calls and its count of tokens are plain decoding's; sampled, they are what the expression allows."""
    call = r'paint\(colour="(red|green)", twice=(True|False)\)'
    chat = {"model": "m", "max_tokens": 150, "temperature": 0, "tools": [TOOL_OF_ANY], "tool_choice": "auto"}
    chat |= {"regex": rf"\[{call}(, {call})?\]", "chat_template_kwargs": {"enable_thinking": False}}
    for i in range(2):
        ask = chat | {"messages": [{"role": "user", "content": f"paint {i}"}]}
        one, other = (tool_calls(server, ask, streamed) for server in (nsd, plain))
        assert one == other
        for calls, reason, tokens in (one, tool_calls(nsd, ask | {"temperature": 1}, streamed)):
            assert reason == "tool_calls" and 1 <= len(calls) <= 2 and tokens > 10
            for name, arguments in calls:
                assert name == "paint" and json.loads(arguments)["colour"] in ("red", "green")
                assert isinstance(json.loads(arguments)["twice"], bool)


def tool_calls(server, ask, streamed):
    """Names and arguments of the calls, why the answer ended, and how many tokens it had."""
    path = "/v1/chat/completions"
    if not streamed:
        answer = server.post(path, **ask).json()
        choice = answer["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"] or ()]
        return calls, choice["finish_reason"], answer["usage"]["completion_tokens"]
    calls, reason = {}, None
    chunks = server.stream(path, **ask, stream_options={"include_usage": True})
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for part in choice["delta"].get("tool_calls") or ():
            name, arguments = calls.get(part["index"], ("", ""))
            function = part["function"]
            calls[part["index"]] = (name + (function.get("name") or ""), arguments + (function.get("arguments") or ""))
        reason = choice["finish_reason"] or reason
    return [calls[i] for i in sorted(calls)], reason, chunks[-1]["usage"]["completion_tokens"]
