"""kt serve's /v1/responses as OpenAI's own Python client sees it.

SPDX-License-Identifier: Apache-2.0
"""

import json

import openai
import pydantic
import pytest

ASK = "Who wrote Hamlet?"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a town.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
}


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    is_old: bool


def test_response(client, model):
    asked = {"model": model, "input": ASK, "max_output_tokens": 24, "temperature": 0}
    answer = client.responses.create(**asked, instructions="Answer in one word.")
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.model == model
    assert answer.status in ("completed", "incomplete") and answer.error is None
    assert answer.output[0].type == "message" and answer.output_text == answer.output[0].content[0].text != ""
    assert answer.instructions == "Answer in one word." and answer.max_output_tokens == 24
    assert 0 < answer.usage.output_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    counted = client.responses.input_tokens.count(model=model, input=ASK, instructions="Answer in one word.")
    assert counted.input_tokens == answer.usage.input_tokens
    cut = client.responses.create(**{**asked, "max_output_tokens": 1})
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    said = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": ASK}], max_tokens=24, temperature=0
    )
    assert client.responses.create(**asked).output_text == said.choices[0].message.content


def test_stream_is_the_whole_response(client, model):
    asked = {"model": model, "input": ASK, "max_output_tokens": 24, "temperature": 0, "top_logprobs": 2}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text and final.status == whole.status
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    tokens = [t.token for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
    assert "".join(tokens) == whole.output_text
    assert [t.token for t in whole.output[0].content[0].logprobs] == tokens
    assert all(len(t.top_logprobs) == 2 for t in whole.output[0].content[0].logprobs)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_calls(client, model, choice):
    asked = {"model": model, "tools": [WEATHER], "temperature": 0, "parallel_tool_calls": False}
    answer = client.responses.create(**asked, input=ASK, tool_choice=choice, max_output_tokens=200)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "weather" and call.status == "completed"
    assert set(json.loads(call.arguments)) == {"town", "days"}
    with client.responses.stream(**asked, input=ASK, tool_choice=choice, max_output_tokens=200) as stream:
        parts = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        assert "".join(parts) == call.arguments == stream.get_final_response().output[-1].arguments
    told = [{"role": "user", "content": ASK}] + answer.output
    told.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    after = client.responses.create(**asked, input=told, tool_choice="none", max_output_tokens=8)
    assert all(item.type == "message" for item in after.output)
    assert after.usage.input_tokens > answer.usage.input_tokens


def test_a_form_is_kept(client, model):
    answer = client.responses.parse(model=model, input=ASK, text_format=Town, max_output_tokens=200, temperature=0)
    assert isinstance(answer.output_parsed, Town)


def test_refusals(client, model):
    cases = [
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}, "input[0].content[0]", "unsupported_value"),
        ({"temperature": 9}, "temperature", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0]", "unsupported_value"),
        ({"input": "word " * 4000}, "input", "context_length_exceeded"),
    ]
    for change, param, code in cases:
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(**{"model": model, "input": ASK, **change})
        assert (e.value.param, e.value.code, e.value.type) == (param, code, "invalid_request_error"), change
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="another", input=ASK)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_leaving_a_stream_frees_its_slot(client, model, idle):
    stream = client.responses.create(
        model=model, input=ASK, max_output_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in zip(range(3), stream):
        pass
    stream.close()
    idle()
