"""OpenAI's API, by its own client, against the bare engine."""

import asyncio
import json

import pytest
from serving_models import CONTEXT, EOS
from warptape.inference import LLM, SamplingParams

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def llm(repository):
    return LLM(repository / "llm" / "1")


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=server.token, max_retries=0)


def bare(llm, prompt, **params):
    values = {"max_tokens": 16, "seed": 1, **params}
    return llm.generate(prompt, SamplingParams(**values))[0].outputs


def test_models(client):
    assert sorted(m.id for m in client.models.list()) == ["bert", "llm"]
    assert client.models.retrieve("llm").id == "llm"
    with pytest.raises(openai.NotFoundError, match="is not there"):
        client.models.retrieve("nobody")


PARAMS = [
    {"temperature": 0.0, "max_tokens": 30},
    {"seed": 7, "top_p": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.2, "max_tokens": 25},
    {"seed": 8, "logit_bias": {"65": 5, "66": 5}, "n": 3},
    {"seed": 9, "stop": ["\n", "a"], "max_tokens": 60},
]
EXTRA = [{}, {"top_k": 20, "min_p": 0.01, "ignore_eos": True}, {}, {"repetition_penalty": 1.1}]


@pytest.mark.parametrize("number", range(4))
def test_completions_equal_the_engine(client, llm, number):
    params, extra = PARAMS[number], EXTRA[number]
    mine = {**params, **extra}
    if "logit_bias" in mine:
        mine["logit_bias"] = {int(k): v for k, v in mine["logit_bias"].items()}
    expected = bare(llm, "Once", **mine)
    out = client.completions.create(model="llm", prompt="Once", extra_body=extra, **{"seed": 1, **params})
    assert [(c.text, c.finish_reason) for c in out.choices] == [(e.text, e.finish_reason) for e in expected]
    assert [c.stop_reason for c in out.choices] == [e.stop_reason for e in expected]
    assert out.usage.prompt_tokens == 4
    assert out.usage.completion_tokens == sum(len(e.token_ids) for e in expected)
    # As a stream, with tokens.
    texts, tokens, ends = {}, {}, {}
    options = {"include_usage": True}
    stream = client.completions.create(
        model="llm", prompt="Once", stream=True, stream_options=options,
        extra_body={**extra, "return_token_ids": True}, **{"seed": 1, **params},
    )  # fmt: skip
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + c.text
            tokens.setdefault(c.index, []).extend(c.token_ids)
            ends[c.index] = c.finish_reason or ends.get(c.index)
    assert [texts[i] for i in sorted(texts)] == [e.text for e in expected]
    assert [tokens[i] for i in sorted(texts)] == [e.token_ids for e in expected]
    assert [ends[i] for i in sorted(texts)] == [e.finish_reason for e in expected]
    assert usage.completion_tokens == out.usage.completion_tokens


def test_what_vllm_takes_beside(client, llm):
    def text(**more):
        extra = {"ignore_eos": True, **more}
        return client.completions.create(
            model="llm", prompt="x" * 600, temperature=0, max_tokens=12, echo=True, extra_body=extra
        ).choices[0].text  # fmt: skip

    kept = CONTEXT - 12
    whole = bare(llm, "x" * kept, temperature=0, max_tokens=12, ignore_eos=True)[0].text
    assert text(truncate_prompt_tokens=-1) == "x" * kept + whole
    allowed = llm.get_tokenizer().encode("ab")
    out = text(truncate_prompt_tokens=3, allowed_token_ids=allowed, bad_words=["aa", "bb"])
    assert out in ("xxx" + "ab" * 6, "xxx" + "ba" * 6)


def test_a_chat_that_goes_on_with_its_last_message(client, llm):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure "}]
    asked = {"model": "llm", "messages": talk, "temperature": 0, "max_tokens": 8}
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    out = client.chat.completions.create(**asked, extra_body=extra)
    expected = bare(llm, "user:hi\nassistant:Sure ", temperature=0, max_tokens=8)[0].text
    assert (out.choices[0].message.content or "") == expected
    with pytest.raises(openai.BadRequestError, match="needs add_generation_prompt: false"):
        client.chat.completions.create(**asked, extra_body={"continue_final_message": True})


def test_several_prompts_tokens_and_echo(client, llm):
    out = client.completions.create(model="llm", prompt=["ab", "cd"], temperature=0, max_tokens=5, n=2)
    assert [c.index for c in out.choices] == [0, 1, 2, 3]
    expected = [bare(llm, p, temperature=0, max_tokens=5)[0].text for p in ("ab", "ab", "cd", "cd")]
    assert [c.text for c in out.choices] == expected
    ids = client.completions.create(model="llm", prompt=[97, 98], temperature=0, max_tokens=5)
    echo = client.completions.create(
        model="llm", prompt="ab", temperature=0, max_tokens=5, echo=True, logprobs=2
    )
    whole = llm.generate("ab", SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=2))[0]
    assert echo.choices[0].text == "ab" + expected[0]
    told = echo.choices[0].logprobs
    assert len(told.tokens) == 7 and told.token_logprobs[0] is None and told.text_offset[:2] == [0, 1]
    own = [p[t].logprob for p, t in zip(whole.prompt_logprobs[1:], whole.prompt_token_ids[1:])]
    own += [p[t].logprob for p, t in zip(whole.outputs[0].logprobs, whole.outputs[0].token_ids)]
    assert told.token_logprobs[1:] == own
    only = client.completions.create(model="llm", prompt="ab", max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].text == "ab" and only.choices[0].logprobs.token_logprobs[1] == own[0]
    assert only.usage.completion_tokens == 0
    assert ids.choices[0].text  # tokens are their bytes' letters in another order


def test_chat(client, llm):
    messages = [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    prompt = "system:Be\nuser:hi\nassistant:"
    expected = bare(llm, prompt, max_tokens=20, seed=3, logprobs=2)[0]
    out = client.chat.completions.create(
        model="llm", messages=messages, seed=3, max_completion_tokens=20, logprobs=True, top_logprobs=2
    )
    (choice,) = out.choices
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert [t.logprob for t in choice.logprobs.content] == [
        d[t].logprob for d, t in zip(expected.logprobs, expected.token_ids)
    ]
    assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)
    text, logprobs, roles = "", [], []
    for chunk in client.chat.completions.create(
        model="llm", messages=messages, seed=3, max_tokens=20, logprobs=True, stream=True
    ):
        (c,) = chunk.choices
        text += c.delta.content or ""
        roles += [c.delta.role] if c.delta.role else []
        logprobs += c.logprobs.content if c.logprobs else []
    assert text == expected.text and roles == ["assistant"]
    assert [t.logprob for t in logprobs] == [t.logprob for t in choice.logprobs.content]
    unseeded = client.chat.completions.create(model="llm", messages=messages)  # fills the context
    assert unseeded.usage.total_tokens == 512 or unseeded.choices[0].finish_reason == "stop"


SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
    "additionalProperties": False}}}  # fmt: skip
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def terse(llm):
    """A bias against what JSON may have for ever."""
    letters = llm.get_tokenizer().encode(" \n\r\t")
    return {str(token): -100 for token in letters} | {str(t): 8 for t in llm.get_tokenizer().encode('}"')}


def test_response_formats(client, terse):
    def ask(kind):
        out = client.chat.completions.create(
            model="llm", messages=HI, seed=1, max_tokens=60, response_format=kind, logit_bias=terse
        )
        return json.loads(out.choices[0].message.content)

    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert type(ask(schema)["ok"]) is bool
    assert isinstance(ask({"type": "json_object"}), dict)
    with pytest.raises(openai.BadRequestError, match="structured_outputs"):
        ask({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such"}}})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_that_are_asked_for(client, terse, choice):
    params = {
        "model": "llm",
        "messages": HI,
        "tools": [TOOL],
        "tool_choice": choice,
        "seed": 1,
        "logit_bias": terse,
    }
    out = client.chat.completions.create(**params).choices[0]
    (call,) = out.message.tool_calls
    assert out.finish_reason == "tool_calls" and out.message.content is None
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    deltas = [c.choices[0] for c in client.chat.completions.create(**params, stream=True)]
    pieces = [t for d in deltas for t in d.delta.tool_calls or ()]
    assert len(pieces) > 3 and {t.index for t in pieces} == {0} and pieces[0].function.name == "weather"
    assert "".join(t.function.arguments for t in pieces) == call.function.arguments
    assert not any(t.id or t.function.name for t in pieces[1:]) and deltas[-1].finish_reason == "tool_calls"
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    with client.chat.completions.stream(**{**params, "tools": [strict]}) as stream:  # which joins them itself
        (joined,) = stream.get_final_completion().choices[0].message.tool_calls
    assert joined.function.name == "weather" and joined.function.parsed_arguments["city"] in ("Oslo", "Rome")
    # The call and its result come back in the next request.
    talk = [*HI, out.message.model_dump(exclude_none=True)]
    talk.append({"role": "tool", "tool_call_id": call.id, "content": "warm"})
    assert client.chat.completions.create(model="llm", messages=talk, max_tokens=2, tools=[TOOL]).choices


def test_embeddings(client):
    out = client.embeddings.create(model="bert", input=["hello", "world"])
    first = out.data[0].embedding
    assert len(first) == 16 and sum(x * x for x in first) == pytest.approx(1, abs=1e-5)
    alone = client.embeddings.create(model="bert", input="hello", encoding_format="float").data[0].embedding
    assert alone == pytest.approx(first, abs=1e-7)
    short = client.embeddings.create(model="bert", input="hello", dimensions=4).data[0].embedding
    assert len(short) == 4 and sum(x * x for x in short) == pytest.approx(1, abs=1e-5)
    assert len(client.embeddings.create(model="llm", input=[[1, 2], [3]]).data[1].embedding) == 24
    with pytest.raises(openai.BadRequestError, match="takes 64"):
        client.embeddings.create(model="bert", input="x" * 65)


@pytest.mark.parametrize(
    "what, error, param, text",
    [
        ({"model": "nobody"}, openai.NotFoundError, "model", "is not there"),
        ({"temperature": 9e9}, openai.BadRequestError, None, "temperature must be in"),
        ({"n": 0}, openai.BadRequestError, "n", "n must be in"),
        ({"max_tokens": 0}, openai.BadRequestError, None, "max_tokens must be at least 1"),
        ({"max_tokens": 1000}, openai.BadRequestError, "max_tokens", "context"),
        ({"prompt": "x" * 600}, openai.BadRequestError, "prompt", "takes 511"),
        ({"prompt": [1, 999]}, openai.BadRequestError, "prompt", "out of the vocabulary"),
        ({"prompt": {}}, openai.BadRequestError, "prompt", "prompt must be"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias", "logit_bias must be"),
        ({"logit_bias": {"900": 1}}, openai.BadRequestError, None, "out of the vocabulary"),
        ({"stop": [""]}, openai.BadRequestError, None, "stop must be"),
        ({"extra_body": {"bad_words": [""]}}, openai.BadRequestError, None, "bad_words must be"),
        ({"extra_body": {"allowed_token_ids": []}}, openai.BadRequestError, None, "allowed_token_ids must"),
        (
            {"extra_body": {"truncate_prompt_tokens": 0}},
            openai.BadRequestError,
            "truncate_prompt_tokens",
            "truncate_prompt_tokens must be -1",
        ),
        ({"extra_body": {"beams": 2}}, openai.BadRequestError, "beams", "unrecognized"),
        ({"logprobs": 50}, openai.BadRequestError, "logprobs", "logprobs must be in"),
        ({"model": "bert"}, openai.BadRequestError, "model", "generates no text"),
    ],
)
def test_errors(client, what, error, param, text):
    for stream in (False, True):
        with pytest.raises(error, match=text) as caught:
            client.completions.create(**{"model": "llm", "prompt": "x", **what}, stream=stream)
        assert caught.value.body["param"] == param and caught.value.body["type"]


def test_asyncio_client_and_versions(server, llm):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.token) as client:

            async def one(i):
                name = "llm:1" if i % 2 else "llm"
                stream = await client.completions.create(model=name, prompt=f"p{i}", seed=i, stream=True)
                return "".join([c.choices[0].text async for c in stream])

            return await asyncio.gather(*(one(i) for i in range(20)))

    expected = [bare(llm, f"p{i}", seed=i)[0].text for i in range(20)]
    assert asyncio.run(main()) == expected


def test_the_end_of_sequence(client):
    out = client.completions.create(model="llm", prompt="x", logit_bias={str(EOS): 100}, max_tokens=5)
    assert (out.choices[0].text, out.choices[0].finish_reason) == ("", "stop")
