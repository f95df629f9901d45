"""kt serve as OpenAI's own Python client sees it.

SPDX-License-Identifier: Apache-2.0
"""

import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "Who wrote Hamlet?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}


def test_models(client, model):
    assert client.models.retrieve(model).owned_by == "kt"
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("another")
    assert e.value.code == "model_not_found"


def test_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == model
    assert choice.message.role == "assistant" and len(choice.message.content) > 3 and choice.message.refusal is None
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    u = answer.usage
    assert 0 < u.completion_tokens <= 24 and u.total_tokens == u.prompt_tokens + u.completion_tokens
    again = client.chat.completions.create(model=model, messages=ASK, max_tokens=24, temperature=0)
    assert again.choices[0].message.content == choice.message.content
    assert again.system_fingerprint == answer.system_fingerprint


def test_stream_is_the_whole_answer(client, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content is None
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]


def test_the_strict_aggregator(client, model):
    with client.chat.completions.stream(model=model, messages=ASK, max_tokens=24, seed=7, n=2) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [c.index for c in final.choices] == [0, 1] and all(c.message.content for c in final.choices)


def test_sampling(client, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 12}
    same = [client.chat.completions.create(**asked, seed=3, n=2) for _ in range(2)]
    assert [c.message.content for c in same[0].choices] == [c.message.content for c in same[1].choices]
    stopped = client.chat.completions.create(**asked, temperature=0, stop=["e"])
    assert "e" not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop"
    one = client.chat.completions.create(
        **asked, temperature=0, logprobs=True, top_logprobs=3, presence_penalty=0.5, frequency_penalty=0.5
    )
    tokens = one.choices[0].logprobs.content
    assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in tokens)
    assert b"".join(bytes(t.bytes) for t in tokens).decode().startswith(one.choices[0].message.content[:5])
    first = one.choices[0].logprobs.content[0].token
    ids = client.post("/tokenize", body={"content": first}, cast_to=object)["tokens"]
    other = client.chat.completions.create(**asked, temperature=0, logprobs=True, logit_bias={str(ids[0]): -100})
    assert other.choices[0].logprobs.content[0].token != first


class Verse(pydantic.BaseModel):
    book: Literal["Genesis", "Exodus", "Psalms"]
    chapter: int = pydantic.Field(ge=1, le=50)


def test_json_schema(client, model):
    answer = client.chat.completions.parse(
        model=model, messages=ASK, response_format=Verse, max_tokens=64, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Verse)


def test_json_object(client, model):
    answer = client.chat.completions.create(
        model=model, messages=ASK, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tool_calls(client, model, choice):
    asked = {"model": model, "messages": ASK, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 200}
    answer = client.chat.completions.create(**asked, temperature=0, parallel_tool_calls=False)
    assert answer.choices[0].finish_reason in ("tool_calls", "stop")
    call = answer.choices[0].message.tool_calls[0]
    assert call.id and call.type == "function" and call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"town", "days"}
    with client.chat.completions.stream(**asked, temperature=0, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    told = ASK + [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    after = client.chat.completions.create(model=model, messages=told, tools=[WEATHER], tool_choice="none", max_tokens=8)
    assert after.choices[0].message.tool_calls is None


def test_completions(client, model):
    asked = {"model": model, "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked)
    assert whole.choices[0].text and whole.usage.completion_tokens <= 12
    text = "".join(c.choices[0].text for c in client.completions.create(**asked, stream=True))
    assert text == whole.choices[0].text
    two = client.completions.create(**{**asked, "prompt": ["In the beginning", "And God said"]})
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == whole.choices[0].text
    echoed = client.completions.create(**asked, echo=True, logprobs=2)
    p = echoed.choices[0].logprobs
    assert echoed.choices[0].text == "In the beginning" + whole.choices[0].text
    assert p.token_logprobs[0] is None and len(p.tokens) == len(p.token_logprobs) == len(p.text_offset)
    assert all(len(t) >= 2 for t in p.top_logprobs[1:])


def test_refusals(client, model):
    cases = [
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"functions": [{"name": "old"}]}, "functions", "unsupported_parameter"),
    ]
    for change, param, code in cases:
        with pytest.raises(openai.BadRequestError) as e:
            client.chat.completions.create(**{"model": model, "messages": ASK, **change})
        assert (e.value.param, e.value.code, e.value.type) == (param, code, "invalid_request_error"), change
        assert e.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=ASK)
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 4000}])
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as e:
        client.embeddings.create(model=model, input="a")
    assert e.value.status_code == 501


def test_leaving_a_stream_frees_its_slot(client, model, idle):
    stream = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in zip(range(3), stream):
        pass
    stream.close()
    idle()


def test_many_at_once(url, model):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", timeout=60) as c:
            asked = [
                c.chat.completions.create(model=model, messages=ASK, max_tokens=16, temperature=0) for _ in range(16)
            ]
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_all())
    assert len({a.id for a in answers}) == 16 and all(a.choices[0].message.content for a in answers)
