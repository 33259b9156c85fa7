"""What a caller may send: the allow-list (T21), hard ranges (T26), media (T22), and how each maps to the request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.api import chat, completions, embeddings
from gateway.errors import InvalidRequest
from gateway.flow.values import ChatRequest, Message

CHAT: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}]}
TEXT: dict[str, Any] = {"model": "mini", "prompt": "Hola"}


def refused(body: object, parse: Any = chat.parse) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "api_base", "base_url", "chat_template", "extra_body", "cache_salt", "priority",
        "functions", "best_of", "mm_processor_kwargs", "custom_llm_provider", "prompt",
        "request_id", "lora", "adapter", "kv_transfer_params", "guardrails",
    ],
)  # fmt: skip
def test_parameters_outside_the_allow_list_are_refused_by_name(name: str) -> None:
    error = refused({**CHAT, name: "{{7*7}}"})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert "{{7*7}}" not in error.message


def test_a_strange_parameter_name_is_not_repeated() -> None:
    error = refused({**CHAT, "<script>\x1b[31m": 1})
    assert "script" not in error.message + str(error.param)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**7}, "max_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, None),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
        ({"stop": [""]}, None),
        ({"stop": ["x"] * 17}, None),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": list(range(129))}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 10**6}, "prompt_logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 1.5}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "Hola"}, "messages"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, None),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "x" * 257}, "model"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ],
)
def test_values_out_of_range_or_type_are_refused_with_their_place(change: dict[str, Any], param: str | None) -> None:
    error = refused({**CHAT, **change})
    assert error.status == 400
    if param is not None:
        assert error.param == param


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"messages": ["x"]}, "messages.0", "`messages.0` must be an object."),
        ({"stop": 5}, "stop", "`stop` must be text or a list of texts."),
        ({"stop": ""}, "stop", "`stop` must have at least 1 character."),
        ({"stop": [5]}, "stop.0", "`stop.0` must be text."),
        ({"logit_bias": {"x": 1}}, "logit_bias", "`logit_bias` holds a key that must match the pattern ^[0-9]{1,10}$."),
        ({"metadata": {"SECRETO": 1}}, "metadata", "`metadata` holds a value that must be text."),
        ({"response_format": 5}, "response_format", "`response_format` must be an object."),
        ({"stream_options": []}, "stream_options", "`stream_options` must be an object."),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content",
            "`messages.0.content` must be text or a list of objects.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages.0.content.0.text",
            "`messages.0.content.0.text` must be text.",
        ),
        (
            {"messages": [{"role": "user", "content": [{}]}]},
            "messages.0.content.0.type",
            "`messages.0.content.0.type` is required.",
        ),
        ({"n": "2"}, "n", "`n` must be a whole number."),
        ({"temperature": 3}, "temperature", "`temperature` must be at most 2."),
    ],
)
def test_errors_speak_plainly_of_the_callers_own_fields(change: dict[str, Any], param: str, message: str) -> None:
    error = refused({**CHAT, **change})
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [(5, "`prompt` must be text, token ids, or a list of either."), ([], "`prompt` must have at least 1 entry.")],
)
def test_a_wrong_prompt_is_told_plainly(prompt: object, message: str) -> None:
    assert refused({**TEXT, "prompt": prompt}, completions.parse).message == message


def test_a_body_of_another_shape_is_told_plainly() -> None:
    assert refused("x").message == "The body must be an object."


def test_a_missing_model_is_named() -> None:
    error = refused({"messages": CHAT["messages"]})
    assert (error.code, error.param) == ("missing_required_parameter", "model")


@pytest.mark.parametrize("body", [[], "x", 1, None, [CHAT]])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}, "url_not_allowed"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "url_not_allowed"),
        ({"type": "image_url", "image_url": {"url": "http://ok\\@127.0.0.1"}}, "url_not_allowed"),
        ({"type": "video_url", "video_url": {"url": "https://example.org/x.mp4"}}, "url_not_allowed"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "unsupported_parameter"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "unsupported_parameter"),
        ({"type": "video", "video": "x"}, "invalid_value"),
    ],
)
def test_media_are_refused_and_no_url_is_fetched(part: dict[str, Any], code: str) -> None:
    error = refused({"model": "mini", "messages": [{"role": "user", "content": [part]}]})
    assert error.code == code
    assert "169.254" not in error.message


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}] * 10_001},
        {"type": "string", "pattern": "a" * 513},
    ],
)
def test_schemas_too_complex_are_refused(schema: dict[str, Any]) -> None:
    assert refused({**CHAT, "guided_json": schema}).code == "schema_too_complex"


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(60):
        schema = {"items": schema}
    assert refused({**CHAT, "guided_json": schema}).code == "schema_too_complex"


def test_a_schema_that_points_elsewhere_is_refused() -> None:
    assert refused({**CHAT, "guided_json": {"$ref": "http://evil/x.json"}}).code == "url_not_allowed"


def test_a_long_pattern_is_refused() -> None:
    assert refused({**CHAT, "guided_regex": "a" * 513}).code == "schema_too_complex"


def test_everything_honored_reaches_the_request() -> None:
    request = chat.parse(
        {
            **CHAT,
            "max_completion_tokens": 7,
            "temperature": 0,
            "top_p": 0.9,
            "n": 2,
            "stop": "fin",
            "seed": -5,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "repetition_penalty": 1.1,
            "logit_bias": {"42": -100},
            "logprobs": True,
            "top_logprobs": 3,
            "top_k": 40,
            "min_p": 0.05,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [3],
            "bad_words": ["malo"],
            "allowed_token_ids": [1, 2],
            "user": "u",
            "metadata": {"team": "azul"},
            "stream": True,
            "stream_options": {"include_usage": True},
            "guided_choice": ["sí", "no"],
        }
    )
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.n, params.seed) == (7, 0.0, 0.9, 2, -5)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("fin",), (3,), ("malo",))
    assert (params.logit_bias, params.allowed_token_ids, params.min_tokens) == ({42: -100.0}, (1, 2), 2)
    assert (params.logprobs, params.top_logprobs, params.top_k, params.min_p) == (True, 3, 40, 0.05)
    assert params.ignore_eos
    assert params.grammar == {"type": "choice", "value": ["sí", "no"]}
    assert (request.stream, request.include_usage, request.user_label) == (True, True, "u")


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "n", "stop", "seed", "logit_bias", "stream", "response_format"))
    assert chat.parse({**CHAT, **nulls}) == chat.parse(CHAT)


@pytest.mark.parametrize(
    "change",
    [
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"store": False},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"tools": []},
        {"functions": []},
        {"best_of": 1},
        {"modalities": ["text"]},
        {"add_generation_prompt": True, "continue_final_message": False, "use_beam_search": False, "echo": False},
        {"length_penalty": 1.0, "priority": 0, "spaces_between_special_tokens": True, "return_token_ids": False},
        {"chat_template": None, "tool_prompt": None, "truncate_prompt_tokens": None},
        {"skip_special_tokens": True, "include_stop_str_in_output": False},
        dict.fromkeys(("tools", "tool_choice", "functions", "store", "reasoning_effort", "audio", "prediction")),
    ],
)
def test_parameters_that_change_nothing_are_accepted(change: dict[str, Any]) -> None:
    assert chat.parse({**CHAT, **change}) == chat.parse(CHAT)


def test_other_routes_take_null_for_what_they_do_not_have() -> None:
    assert completions.parse({**TEXT, "best_of": None, "suffix": None}) == completions.parse(TEXT)
    assert completions.parse({**TEXT, "best_of": 1}) == completions.parse(TEXT)
    assert embeddings.parse({"model": "e", "input": "x", "dimensions": None}).inputs == ("x",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", 0),
        ("service_tier", "fast"),
        ("modalities", ["audio"]),
        ("reasoning_effort", "extreme"),
        ("reasoning_effort", 3),
        ("prompt_cache_key", "k" * 1025),
        ("best_of", 2),
    ],
)
def test_parameters_with_an_effect_that_we_lack_stay_refused(name: str, value: object) -> None:
    error = refused({**CHAT, name: value})
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reasoning_effort", "low"),
        ("verbosity", "medium"),
        ("prompt_cache_key", "team-7"),
        ("prompt_cache_retention", "24h"),
        ("service_tier", "priority"),
        ("store", True),
        ("prediction", {"type": "content", "content": "def f(): ..."}),
    ],
)
def test_a_hint_is_taken_and_named_as_ignored(name: str, value: object) -> None:
    assert chat.parse({**CHAT, name: value}) == replace(chat.parse(CHAT), ignored_hints=(name,))


def test_the_successor_of_user_is_the_same_label() -> None:
    assert chat.parse({**CHAT, "safety_identifier": "s-1"}) == chat.parse({**CHAT, "user": "s-1"})
    assert chat.parse({**CHAT, "safety_identifier": "s-1", "user": "u-1"}).user_label == "u-1"


@pytest.mark.parametrize(("sent", "meant"), [(["hola"], "hola"), ([[1, 2]], [1, 2])])
def test_a_list_of_one_prompt_is_that_prompt(sent: object, meant: object) -> None:
    assert completions.parse({**TEXT, "prompt": sent}) == completions.parse({**TEXT, "prompt": meant})


@pytest.mark.parametrize(("sent", "words"), [(["a"] * 3000, "must have at most 2048 entries."), (["a"] * 300, "too")])
def test_too_many_prompts_are_refused_for_their_number(sent: object, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completions.parse({**TEXT, "prompt": sent})
    assert words in caught.value.message
    assert caught.value.param == "prompt"


def test_an_assistants_message_without_text_is_empty_text() -> None:
    silent = {"role": "assistant", "content": None}
    assert chat.parse({**CHAT, "messages": [silent, *CHAT["messages"]]}).messages[0] == Message.of_text("assistant", "")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "uno"}, {"type": "text", "text": "dos"}]
    request = chat.parse({"model": "mini", "messages": [{"role": "user", "content": parts}]})
    assert request.messages == (Message.of_text("user", "uno\ndos"),)


def test_an_answer_sent_back_by_an_sdk_is_accepted() -> None:
    earlier = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "function_call": None}
    assert chat.parse({"model": "mini", "messages": [earlier, *CHAT["messages"]]}).messages[0].role == "assistant"


def test_a_completion_takes_text_or_tokens_and_defaults_to_sixteen() -> None:
    assert completions.parse(TEXT).params.max_tokens == 16
    assert completions.parse({**TEXT, "prompt": [1, 2]}).prompts == ((1, 2),)
    assert completions.parse({**TEXT, "logprobs": 0}).params.logprobs


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], ["a", [1]], [[]], ["a"] * 257, [-1], None, [1.5], [True]])
def test_an_empty_or_odd_prompt_is_refused(prompt: object) -> None:
    assert refused({**TEXT, "prompt": prompt}, completions.parse).status == 400


@pytest.mark.parametrize("inputs", ["", [], [""], [[1, "x"]], [[]], None, ["x"] * 2049])
def test_odd_embedding_inputs_are_refused(inputs: object) -> None:
    assert refused({"model": "embed", "input": inputs}, embeddings.parse).status == 400


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("repeat_penalty", 1.1, "`repetition_penalty`"),
        ("num_predict", 64, "`max_tokens`"),
        ("best_of", 3, "`n`"),
    ],
)
def test_a_parameter_of_another_server_is_refused_with_ours(name: str, value: object, instead: str) -> None:
    error = refused({**CHAT, name: value})
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert instead in str(error.hint)


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    body = {**CHAT, "max_tokens": 4.0, "seed": 33875.0, "n": 2.0, "top_k": 5.0}
    params = chat.parse(body).params
    assert (params.max_tokens, params.seed, params.n, params.top_k) == (4, 33875, 2, 5)
    assert isinstance(params.seed, int)
    assert refused({**CHAT, "max_tokens": 4.5}).param == "max_tokens"
    assert refused({**CHAT, "seed": 1e300}).param == "seed"


def test_a_nucleus_of_zero_is_the_most_likely_token() -> None:
    top_p = chat.parse({**CHAT, "top_p": 0}).params.top_p
    assert top_p is not None
    assert 0 < top_p < 1e-5


def test_a_schema_beside_json_object_constrains_the_answer() -> None:
    form = {"type": "json_object", "schema": {"type": "object", "required": ["a"]}}
    assert chat.parse({**CHAT, "response_format": form}).params.grammar == {
        "type": "json_schema",
        "value": {"type": "object", "required": ["a"]},
    }


def test_a_guided_schema_may_be_text() -> None:
    plain = chat.parse({**CHAT, "guided_json": {"type": "integer"}}).params.grammar
    assert chat.parse({**CHAT, "guided_json": '{"type": "integer"}'}).params.grammar == plain
    assert refused({**CHAT, "guided_json": "{"}).param == "guided_json"
    assert refused({**CHAT, "guided_json": "[1]"}).param == "guided_json"


def test_what_fills_a_gap_is_refused_with_a_reason() -> None:
    error = refused({**TEXT, "suffix": "fin"}, completions.parse)
    assert (error.param, "`prompt`" in str(error.hint)) == ("suffix", True)
    assert completions.parse({**TEXT, "suffix": ""}) == completions.parse(TEXT)


def test_of_a_templates_variables_only_those_that_steer_reasoning_are_taken() -> None:
    taken = chat.parse({**CHAT, "chat_template_kwargs": {"enable_thinking": False}})
    assert isinstance(taken, ChatRequest)
    assert taken.template_kwargs == {"enable_thinking": False}
    for name in ("messages", "chat_template", "tools"):
        error = refused({**CHAT, "chat_template_kwargs": {name: "x"}})
        assert error.param == f"chat_template_kwargs.{name}"
