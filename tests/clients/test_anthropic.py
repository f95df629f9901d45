"""kt serve's /v1/messages as Anthropic's own Python client sees it.

SPDX-License-Identifier: Apache-2.0
"""

import json

import anthropic
import pytest

ASK = [{"role": "user", "content": "Who wrote Hamlet?"}]
GREEDY = {"extra_body": {"temperature": 0}}  # which this version of the client has no name for
WEATHER = {
    "name": "weather",
    "description": "The weather of a town.",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
}


def test_message(claude, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 24, **GREEDY}
    answer = claude.messages.create(**asked, system="Answer in one word.")
    assert answer.type == "message" and answer.role == "assistant" and answer.id.startswith("msg_")
    assert answer.model == model and answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.stop_sequence is None
    assert 0 < answer.usage.output_tokens <= 24
    counted = claude.messages.count_tokens(model=model, messages=ASK, system="Answer in one word.")
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    stopped = claude.messages.create(**asked, stop_sequences=["e"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "e"


def test_stream_is_the_whole_message(claude, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 24, **GREEDY}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in claude.messages.create(**asked, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_tool_use(claude, model, choice):
    asked = {"model": model, "messages": ASK, "tools": [WEATHER], "max_tokens": 200, **GREEDY}
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = claude.messages.create(**asked, tool_choice=choice)
    use = answer.content[-1]
    assert answer.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "weather"
    assert set(use.input) == {"town", "days"}
    with claude.messages.stream(**asked, tool_choice=choice) as stream:
        parts = [e.delta.partial_json for e in stream if e.type == "content_block_delta"]
        assert json.loads("".join(parts)) == use.input == stream.get_final_message().content[-1].input
    told = ASK + [
        {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
    ]
    after = claude.messages.create(
        model=model, messages=told, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=8
    )
    assert all(b.type == "text" for b in after.content)


def test_an_answer_that_was_begun_goes_on(claude, model):
    begun = ASK + [{"role": "assistant", "content": "Shake"}]
    answer = claude.messages.create(model=model, messages=begun, max_tokens=8, **GREEDY)
    assert answer.content and answer.usage.output_tokens <= 8


def test_refusals(claude, model):
    cases = [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "role"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice"),
    ]
    for change, named in cases:
        with pytest.raises(anthropic.BadRequestError) as e:
            claude.messages.create(**{"model": model, "messages": ASK, "max_tokens": 8, **change})
        assert e.value.body["error"]["type"] == "invalid_request_error", change
        assert named in e.value.body["error"]["message"] and e.value.body["request_id"] == e.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="another", messages=ASK, max_tokens=8)


def test_leaving_a_stream_frees_its_slot(claude, model, idle):
    with claude.messages.stream(
        model=model, messages=ASK, max_tokens=900, extra_body={"ignore_eos": True}
    ) as stream:
        for _ in zip(range(3), stream.text_stream):
            pass
    idle()
