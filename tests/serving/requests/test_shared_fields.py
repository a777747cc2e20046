"""Fields that clients of vLLM, SGLang and LMDeploy send: each has the effect that its name has there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from live_server import ask_about, make_data_url, make_settings, read_events

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.openai.protocol import ChatCompletionRequest, CompletionRequest

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
USER = [{"role": "user", "content": "the game"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def chat(http: httpx.AsyncClient, messages: Any = USER, **fields: Any) -> dict[str, Any]:
    return await post(http, CHAT, {"messages": messages, **GREEDY, **fields})


async def refuse(http: httpx.AsyncClient, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    """The error of a body that is refused."""
    error: dict[str, Any] = (await post(http, path, body, 400))["error"]
    return error


# --- names of the same field ----------------------------------------------------------------------------------------


async def test_two_names_of_a_field_mean_the_same(http: httpx.AsyncClient) -> None:
    (token_id,) = (await chat(http, max_tokens=1, return_token_ids=True))["choices"][0]["token_ids"]
    stop = {"ignore_eos": False, "stop_token_ids": [token_id], "max_tokens": 8, "logit_bias": {str(token_id): 100}}
    for name in ("min_tokens", "min_new_tokens"):
        assert (await chat(http, **stop, **{name: 3}))["usage"]["completion_tokens"] == 3
    for path, prompt in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "the game"})):
        answer = await post(http, path, {**prompt, "max_completion_tokens": 3, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == 3
    answer = await post(http, GENERATE, {"prompt": "the game", "max_new_tokens": 3, "ignore_eos": True})
    assert answer["meta_info"]["completion_tokens"] == 3
    text = (await chat(http, max_tokens=12))["choices"][0]["message"]["content"]
    stop = {"max_tokens": 12, "stop": text[4:6]}
    kept = [await chat(http, **stop, **{name: True}) for name in ("no_stop_trim", "include_stop_str_in_output")]
    assert {answer["choices"][0]["message"]["content"] for answer in kept} == {text[: text.index(text[4:6]) + 2]}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"min_tokens": 1, "min_new_tokens": 2}, "min_tokens"),
        (CHAT, {"no_stop_trim": True, "include_stop_str_in_output": False}, "no_stop_trim"),
        (CHAT, {"request_id": "a", "rid": "b"}, "rid"),
        (CHAT, {"request_id": "a b"}, "request_id"),
        (CHAT, {"request_id": "x" * 129}, "request_id"),
        (CHAT, {"lora_path": "x"}, "lora_path"),
        (CHAT, {"do_preprocess": False}, "do_preprocess"),
        (CHAT, {"session_id": 3}, "session_id"),
        (CHAT, {"documents": [{"title": 3}]}, "documents[0].title"),
        (CHAT, {"chat_template_kwargs": {"documents": []}}, "chat_template_kwargs.documents"),
        (CHAT, {"stream": True, "stream_options": {"continuous_usage_stats": True}},
         "stream_options.continuous_usage_stats"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        (GENERATE, {"prompt": "x", "max_tokens": 3, "max_new_tokens": 4}, "max_new_tokens"),
        (GENERATE, {"prompt": "x", "sampling_params": {"top_k": 1}}, "sampling_params"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"messages": USER, **fields} if path == CHAT else fields
    assert (await refuse(http, body, path))["param"] == param


async def test_values_that_change_nothing_are_taken(http: httpx.AsyncClient) -> None:
    plain = (await chat(http))["choices"]
    neutral = {"session_id": -1, "do_preprocess": True, "lora_path": None, "top_k": -1, "repetition_penalty": 1.0}
    assert (await chat(http, **neutral))["choices"] == plain


# --- the answer -----------------------------------------------------------------------------------------------------


async def test_the_client_names_the_answer(http: httpx.AsyncClient) -> None:
    assert (await chat(http, request_id="mine-1"))["id"] == "chatcmpl-mine-1"
    assert (await chat(http, rid="mine-1"))["id"] == "mine-1"
    assert (await post(http, COMPLETIONS, {"prompt": "x", "request_id": "a.b:c"}))["id"] == "cmpl-a.b:c"
    assert (await post(http, GENERATE, {"prompt": "x", "rid": "r"}))["meta_info"]["id"] == "r"


async def test_echo_begins_with_the_message_that_is_continued(http: httpx.AsyncClient) -> None:
    begun = [*USER, {"role": "assistant", "content": "one, two,"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    plain = (await chat(http, begun, **fields))["choices"][0]["message"]["content"]
    echoed = (await chat(http, begun, **fields, echo=True))["choices"][0]["message"]["content"]
    assert echoed == "one, two," + plain
    streamed = await http.post(CHAT, json={"messages": begun, **GREEDY, **fields, "echo": True, "stream": True})
    pieces = [choice["delta"].get("content") or "" for e in read_events(streamed.text) for choice in e["choices"]]
    assert "".join(pieces) == echoed
    assert (await chat(http, echo=True))["choices"] == (await chat(http))["choices"]  # the user's is not repeated


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "the game"})])
async def test_each_event_may_have_the_usage_so_far(http: httpx.AsyncClient, path: str, prompt: dict[str, Any]) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    events = read_events((await http.post(path, json={**prompt, **GREEDY, "n": 2, **options})).text)
    total = events[-1]["usage"]
    assert not events[-1]["choices"] and total["completion_tokens"] == 8
    for index in range(2):
        of_choice = [e["usage"] for e in events[:-1] if e["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in of_choice]
        assert counts == sorted(counts) and counts[-1] == 4
        assert {usage["prompt_tokens"] for usage in of_choice[1:]} == {total["prompt_tokens"]}
        assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in of_choice)


def test_spaces_between_special_tokens_are_an_option_of_the_detokenizer() -> None:
    body = {"messages": USER, "prompt": "x", "spaces_between_special_tokens": False}
    for model, other in ((ChatCompletionRequest, "prompt"), (CompletionRequest, "messages")):
        fields = {name: value for name, value in body.items() if name != other}
        assert model.model_validate(fields).sampling()["spaces_between_special_tokens"] is False


# --- pictures -------------------------------------------------------------------------------------------------------


async def test_options_for_all_pictures(http: httpx.AsyncClient) -> None:
    large = ask_about(make_data_url(size=(400, 300)), "what?")

    async def vision_tokens(path: str = CHAT, **fields: Any) -> int:
        answer = await post(http, path, {"messages": large, "max_tokens": 1, **fields})
        return int(answer["usage"]["prompt_tokens_details"]["vision_tokens"])

    plain, small = await vision_tokens(), await vision_tokens(mm_processor_kwargs={"max_pixels": 4000})
    assert small < plain
    assert await vision_tokens(media_io_kwargs={"image": {"transparency": "drop"}}) == plain
    large[0]["content"][0]["image_url"]["max_pixels"] = 8000
    own = await vision_tokens()
    assert small < own == await vision_tokens(mm_processor_kwargs={"max_pixels": 4000})  # its own option wins


async def test_options_of_a_modality_leave_the_other_alone(http: httpx.AsyncClient) -> None:
    """`num_frames` is no option of a picture."""
    messages = ask_about(make_data_url(), "what?")
    assert await chat(http, messages, mm_processor_kwargs={"num_frames": 2, "fps": 3})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mm_processor_kwargs": {"max_pixel": 3}}, "mm_processor_kwargs.max_pixel"),
        ({"mm_processor_kwargs": {"max_pixels": "x"}}, "mm_processor_kwargs.max_pixels"),
        ({"media_io_kwargs": {"sound": {}}}, "media_io_kwargs.sound"),
        ({"media_io_kwargs": {"image": {"fps": 2}}}, "media_io_kwargs.image.fps"),
        ({"media_io_kwargs": {"image": 3}}, "media_io_kwargs.image"),
        ({"max_dynamic_patch": 3}, "max_dynamic_patch"),  # an option of InternVL
    ],
)
async def test_unknown_options_are_named(http: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    messages = ask_about(make_data_url(), "what?")
    error = await refuse(http, {"messages": messages, **fields})
    assert error["param"] == param and param in error["message"]


async def test_all_routes_with_pictures_take_them(http: httpx.AsyncClient) -> None:
    url = make_data_url(size=(400, 300))
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    turn = ask_about(url)[0]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
        "/v1/messages": {
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 1
        },
        "/v1/chat/interactive": {"prompt": [turn], "request_output_len": 1},
        GENERATE: {"prompt": "<IMAGE_TOKEN>", "image_data": url, "max_tokens": 1},
    }  # fmt: skip

    def count(answer: dict[str, Any]) -> int:
        usage = answer.get("usage") or answer.get("meta_info") or answer
        found = usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        return int(found)

    for path, body in bodies.items():
        plain = count(await post(http, path, body))
        assert count(await post(http, path, {**body, "mm_processor_kwargs": {"max_pixels": 4000}})) < plain, path
        bad = await http.post(path, json={**body, "mm_processor_kwargs": {"odd": 1}})
        assert bad.status_code == 400 and "mm_processor_kwargs.odd" in bad.text, path


# --- the prompt -----------------------------------------------------------------------------------------------------


async def prompt_ids(http: httpx.AsyncClient, messages: Any = USER, **fields: Any) -> list[int]:
    """The prompt of a chat as the model gets it: the log-probabilities of an echoed prompt count its tokens."""
    answer = await post(http, "/tokenize", {"messages": messages, **fields})
    found: list[int] = answer["tokens"]
    return found


async def test_the_end_of_a_prompt_is_kept(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    ids = list(range(40, 100))
    body = {**GREEDY, "echo": True, "return_token_ids": True}
    cut = await post(http, COMPLETIONS, {"prompt": ids, "truncate_prompt_tokens": 7, **body})
    short = await post(http, COMPLETIONS, {"prompt": ids[-7:], **body})
    assert cut["usage"]["prompt_tokens"] == 7 and cut["choices"] == short["choices"]
    long = [*range(40, 90)] * 20
    for fields, room in (({"max_tokens": 9}, 9), ({"max_tokens": 512}, 1), ({"max_tokens": 0, "echo": True}, 0)):
        fitting = await post(
            http, COMPLETIONS, {"prompt": long, "truncate_prompt_tokens": -1, "ignore_eos": True, **fields}
        )
        assert fitting["usage"]["prompt_tokens"] == engine.session_len - room
    for path, prompt in (
        (CHAT, {"messages": [{"role": "user", "content": "the game " * 400}]}),
        (GENERATE, {"prompt": "the game " * 400}),
    ):
        answer = await post(http, path, {**prompt, "max_tokens": 4, "truncate_prompt_tokens": 50})
        assert (answer.get("usage") or answer["meta_info"])["prompt_tokens"] == 50
    for k in (0, -2):
        assert (await refuse(http, {"messages": USER, "truncate_prompt_tokens": k}))[
            "param"
        ] == "truncate_prompt_tokens"
    error = await refuse(http, {"prompt": [5] * 5000, "truncate_prompt_tokens": 3}, COMPLETIONS)
    assert error["code"] == "context_length_exceeded", "of a prompt many times as long as fits nothing is taken"


async def test_pictures_are_cut_off_whole(http: httpx.AsyncClient) -> None:
    pictures = [make_data_url(seed=seed, size=(56, 56)) for seed in (1, 2)]
    both, last = ask_about(pictures[0], "a", pictures[1], "what is it?"), ask_about(pictures[1], "what is it?")

    async def count(messages: Any, **fields: Any) -> tuple[int, int]:
        usage = (await chat(http, messages, **fields))["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["vision_tokens"]

    whole, (_, one) = await count(both), await count(last)
    assert whole[1] == 2 * one
    tail = (await count(ask_about("what is it?")))[0] - (await count(ask_about("")))[0]
    assert await count(both, truncate_prompt_tokens=whole[0]) == whole
    (shorter, seen) = await count(both, truncate_prompt_tokens=whole[0] - 1)
    assert (shorter, seen) == (whole[0] - 1, 2 * one), "a token of text in front of the first picture"
    for k in range(whole[0] - 2, 0, -1):
        num_tokens, seen = await count(both, truncate_prompt_tokens=k)
        assert num_tokens <= k and seen in (0, one, 2 * one) and (num_tokens == k or seen < 2 * one)
    assert seen == 0 and num_tokens == 1 and tail > 0
    only = {"prompt": "<IMAGE_TOKEN>", "image_data": pictures[0], "truncate_prompt_tokens": 2}
    error = await refuse(http, only, GENERATE)
    assert error["param"] == "truncate_prompt_tokens" and "media are not cut" in error["message"]


async def test_answers_to_cut_prompts_are_those_to_what_is_left(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Of pictures, too: the second of two, with the text around it."""
    url = make_data_url(seed=8, size=(56, 56))
    raw = "one <|vision_start|><IMAGE_TOKEN><|vision_end|> two <|vision_start|><IMAGE_TOKEN><|vision_end|> three"
    left = " two <|vision_start|><IMAGE_TOKEN><|vision_end|> three"
    body = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_logprob": True}
    alone = await post(http, GENERATE, {"prompt": left, "image_data": [url], **body})
    k = alone["meta_info"]["prompt_tokens"]
    cut = await post(http, GENERATE, {"prompt": raw, "image_data": [url, url], "truncate_prompt_tokens": k, **body})
    assert cut["meta_info"]["prompt_tokens"] == k and cut["output_ids"] == alone["output_ids"]


async def test_a_chat_template_of_a_request_must_be_trusted(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    source = "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{{ extra }}"
    body = {"messages": USER, **GREEDY, "chat_template": source, "chat_template_kwargs": {"extra": "<<"}}
    error = await refuse(http, body)
    assert error["param"] == "chat_template" and "--trust-request-chat-template" in error["message"]
    app = create_app(engine, make_settings(trust_request_chat_template=True))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60
    ) as trusting:
        answer = await post(trusting, CHAT, body)
        raw = await post(trusting, COMPLETIONS, {"prompt": "[user: the game]<<", **GREEDY})
        assert answer["usage"]["prompt_tokens"] == raw["usage"]["prompt_tokens"]
        assert answer["choices"][0]["message"]["content"] == raw["choices"][0]["text"]
        for bad in (
            "{% for",
            "{{ raise_exception('no') }}",
            "{{ messages.__class__ }}",
            "{% for a in range(10**9) %}{% endfor %}",
        ):
            refused = await trusting.post(CHAT, json={**body, "chat_template": bad})
            assert refused.status_code in (400, 500), bad
            assert bad != "{% for" or refused.json()["error"]["param"] == "chat_template"


# --- tenants --------------------------------------------------------------------------------------------------------


async def test_salts_keep_caches_apart(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Neither blocks nor embeddings nor features of a request are found by one of another salt, and all by its own."""
    messages = ask_about(make_data_url(seed=77, size=(84, 84)), "the game is in the frame, " * 5)

    async def ask(salt: str | None) -> tuple[int, bool, Any]:
        response = await http.post(
            CHAT, json={"messages": messages, **GREEDY, "cache_salt": salt}, headers={"x-seesay-timings": "1"}
        )
        answer = response.json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, answer["seesay"]["media"][0]["is_cached"], answer["choices"][0]["message"]["content"]

    seen: list[Any] = []
    for salt in (None, "one", "two"):
        hits = engine.stats().total_feature_hits
        first, second = await ask(salt), await ask(salt)
        assert first[:2] == (0, False) and second[0] > 0 and second[1], salt
        assert engine.stats().total_feature_hits >= hits
        seen.append(first[2])
    assert seen[0] == seen[1] == seen[2]
    assert (await refuse(http, {"messages": messages, "cache_salt": ""}))["param"] == "cache_salt"


async def test_priorities_are_taken_everywhere(http: httpx.AsyncClient) -> None:
    assert await chat(http, priority=-3) and await chat(http, priority=9)
    for value in (1.5, "1", 1 << 31):
        assert (await refuse(http, {"messages": USER, "priority": value}))["param"] == "priority"
    assert await post(http, "/v1/responses", {"input": "x", "priority": 1, "cache_salt": "s", "max_output_tokens": 1})
    assert await post(http, "/v1/messages", {"messages": USER, "priority": 1, "cache_salt": "s", "max_tokens": 1})
