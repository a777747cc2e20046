"""How requests are to be answered: stop and bad words, tokens that end an answer, grammars, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_model import MODEL, TOKENIZER, load_changed, make_texts
from trial_script import ScriptedTrials

from seesay.config import GenerationConfig
from seesay.engine.front.answer_options import AnswerOptions, AnswerOptionsReader
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ErrorCode, RequestError
from seesay.system.cancellation import Cancellation
from seesay.templates import JinjaTemplate
from seesay.values import GenerationRequest, Message, TextPart

SPECIAL = TOKENIZER.special_token_ids
IM_END, END_OF_TEXT, START = (SPECIAL[f"<|{name}|>"] for name in ("im_end", "endoftext", "im_start"))
REGEX = {"type": "regex_schema", "regex_schema": "(yes|no)"}
WAITING = Cancellation()
TALK = (Message(role="user", parts=(TextPart(text="hi"),)),)


def make_reader(
    trials: ScriptedTrials | None = None, *, texts: TextFrontend | None = None, model: Any = MODEL
) -> AnswerOptionsReader:
    return AnswerOptionsReader(model, texts or make_texts(), None if trials is None else trials.as_trials)


def ask(prompt: Any = "hi", *, of_request: Mapping[str, Any] | None = None, **options: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, gen_config=GenerationConfig(**options), **(of_request or {}))


def read(request: GenerationRequest, **options: Any) -> AnswerOptions:
    return make_reader(**options).read(request)


def find_error(request: GenerationRequest, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(request, **options)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value


def change_model(*, backbone: Mapping[str, Any] | None = None, family: Mapping[str, Any] | None = None) -> Any:
    """Return the model with other facts about its backbone and its family."""
    return SimpleNamespace(
        checkpoint=MODEL.checkpoint,
        tokenizer=TOKENIZER,
        vocab_size=MODEL.vocab_size,
        backbone=replace(MODEL.backbone, **(backbone or {})),
        family=SimpleNamespace(**{"writes_text": True, **(family or {})}),
    )


# --- what ends an answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, (5, 6, IM_END)), ({}, {"eos_token_id": 7}, (7, IM_END)),
        ({}, {"text_config": {"eos_token_id": 8}}, (8, IM_END)), ({}, {"llm_config": {"eos_token_id": 9}}, (9, IM_END)),
        ({}, {"text_config": {"eos_token_id": 8}, "llm_config": {"eos_token_id": 9}}, (8, IM_END)),
        ({}, {"text_config": "odd"}, (IM_END,)), ({}, {}, (IM_END,)),
        ({"eos_token_id": [0, 1023, 1024, -1, "a", None, True, 5.0, IM_END, 0]}, {}, (0, 1023, IM_END)),
    ],
)  # fmt: skip
def test_the_tokens_that_end_any_answer_are_those_of_the_folder(
    generation: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    model = change_model()
    model.checkpoint = SimpleNamespace(generation_config=generation, config=config)
    assert make_reader(model=model).eos_token_ids == expected


def test_special_tokens_among_stop_words_end_an_answer_as_tokens() -> None:
    request = ask(stop_words=["the", "<|im_start|>", "nosuchtoken", "a"], stop_token_ids=[3])
    found = read(request)
    assert found.params.stop_token_ids == (3, START)
    assert found.detokenizer.stop_words == {"the", "nosuchtoken", "a"}
    assert found.params.eos_token_ids == (IM_END, END_OF_TEXT)
    assert make_reader().find_ending_ids(request) == (IM_END, END_OF_TEXT, 3, START)
    assert make_reader().find_ending_ids(ask(ignore_eos=True, stop_token_ids=[3])) == (3,)
    assert read(ask()).params.stop_token_ids == () and not read(ask()).detokenizer.stops_at_words


def test_stop_words_of_a_template_end_turns_of_conversations() -> None:
    texts = make_texts()
    texts.chat_template = JinjaTemplate("own", "{{ messages }}", stop_words=["<|box_end|>", "###"])
    for prompt, words, ids in ((TALK, {"###", "x"}, [SPECIAL["<|box_end|>"]]), ("hi", {"x"}, []), ((1, 2), {"x"}, [])):
        found = read(ask(prompt, stop_words=["x"]), texts=texts)
        assert found.detokenizer.stop_words == words
        assert found.params.eos_token_ids == (IM_END, END_OF_TEXT, *ids) and found.params.stop_token_ids == ()


def test_text_is_written_as_the_request_says() -> None:
    ids = TOKENIZER.encode("a<|im_start|><|im_end|>b")
    shown = read(ask(skip_special_tokens=False)).detokenizer
    assert shown.add(ids) == "a<|im_start|><|im_end|>b"
    kept = read(ask(of_request={"kept_tokens": ("<|im_end|>",)})).detokenizer
    assert kept.add(ids) == "a<|im_end|>b"
    a, b = TOKENIZER.encode("ab")
    held = read(ask(stop_words=["a"], min_new_tokens=1, include_stop_str_in_output=True)).detokenizer
    assert [held.push([each]).text for each in (a, b, a)] == ["a", "b", "a"] and held.stop == "a"


# --- what an answer may not have --------------------------------------------------------------------------------------


def test_bad_words_are_texts_and_special_tokens() -> None:
    params = read(ask(bad_words=["the", "<|im_start|>", "box"], bad_token_ids=[4])).params
    assert params.bad_words == ("the", "box") and params.bad_token_ids == (4, START)
    assert read(ask()).params.bad_words == () and read(ask()).params.bad_token_ids == ()


def test_special_tokens_that_would_show_a_bad_word_are_banned() -> None:
    shows: Any = {"skip_special_tokens": False}
    boxes = {SPECIAL["<|box_start|>"], SPECIAL["<|box_end|>"]}
    assert set(read(ask(bad_words=["box", "nothing"], **shows)).params.bad_token_ids) == boxes
    assert read(ask(bad_words=["box"])).params.bad_token_ids == ()
    assert read(ask(bad_words=["<|box_end|>"], **shows)).params.bad_token_ids == (SPECIAL["<|box_end|>"],)
    assert read(ask(**shows)).params.bad_token_ids == ()


def test_texts_of_tokens_must_add_up_for_bad_words(tmp_path: Path) -> None:
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    tokenizer = load_changed(tmp_path, decoder=decoder)
    texts = TextFrontend(tokenizer, make_texts().chat_template)
    error = find_error(ask(bad_words=["the"]), texts=texts)
    assert error.param == "bad_words" and "use bad_token_ids" in str(error)
    assert read(ask(bad_words=["<|im_start|>"]), texts=texts).params.bad_token_ids == (START,)
    assert read(ask(), texts=texts).params.bad_words == ()


@pytest.mark.parametrize(
    "option", ["logit_bias", "stop_token_ids", "bad_token_ids", "allowed_token_ids", "whitelist_token_ids"]
)
def test_token_ids_are_of_the_vocabulary(option: str) -> None:
    def make(*ids: int) -> Any:
        return dict.fromkeys(ids, 1.0) if option == "logit_bias" else list(ids)

    last = MODEL.vocab_size - 1
    assert read(ask(**{option: make(0, last)})).params is not None
    error = find_error(ask(**{option: make(0, 1024)}))
    assert error.param == option
    assert f"{option}: token id 1024 is not in the vocabulary (0 to {last})" in str(error)


# --- what is computed -------------------------------------------------------------------------------------------------


def test_seeds_are_drawn_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda num_bits: 1000 + num_bits)
    assert read(ask(do_sample=True)).params.seed == 1063
    assert read(ask(do_sample=True, random_seed=3)).params.seed == 3


def test_nothing_is_generated_for_a_prompt_alone() -> None:
    asked = {"prompt_logprobs": 2, "output_logits": "all", "output_last_hidden_state": "all"}
    params = read(ask(of_request={"wants_answer": False}, **asked)).params
    assert (params.max_new_tokens, params.pooling, params.prompt_logprobs) == (0, None, 2)
    assert (params.output_logits, params.output_last_hidden_state) == ("all", "all")
    params = read(ask(of_request={"pooling": "last"}, **asked)).params
    assert (params.max_new_tokens, params.pooling, params.prompt_logprobs) == (0, "last", None)
    assert read(ask(max_new_tokens=9, prompt_logprobs=2)).params.max_new_tokens == 9


def test_one_answer_is_given() -> None:
    assert find_error(ask(n=2)).param == "n" and find_error(ask(best_of=2)).param == "best_of"


def test_a_model_that_writes_no_text_embeds_alone() -> None:
    model = change_model(family={"writes_text": False})
    assert "this model writes no text" in str(find_error(ask(), model=model))
    assert read(ask(of_request={"pooling": "tokens"}), model=model).params.pooling == "tokens"
    assert read(ask(of_request={"pooling": "last"})).params.pooling == "last"


def test_prompts_whose_tokens_see_what_follows_have_no_log_probabilities() -> None:
    model = change_model(backbone={"is_prefix_lm": True})
    error = find_error(ask(prompt_logprobs=0), model=model)
    assert error.param == "prompt_logprobs" and "ask for logprobs of the answer" in str(error)
    assert read(ask(logprobs=1), model=model).params.logprobs == 1
    assert read(ask(prompt_logprobs=0, of_request={"pooling": "last"}), model=model).params.prompt_logprobs is None
    assert read(ask(prompt_logprobs=0)).params.prompt_logprobs == 0


def test_thoughts_have_the_length_of_the_request() -> None:
    texts = TextFrontend(TOKENIZER, make_texts().chat_template, reasoning_parser="deepseek-r1")
    assert read(ask(TALK, max_thinking_tokens=6), texts=texts).max_thinking_tokens == 6
    assert read(ask(TALK), texts=texts).max_thinking_tokens is None
    assert find_error(ask(TALK, max_thinking_tokens=6)).param == "max_thinking_tokens"


# --- grammars ---------------------------------------------------------------------------------------------------------


def test_the_program_of_a_grammar_is_tried_once() -> None:
    trials, request = ScriptedTrials(), ask(response_format=REGEX)
    reader = make_reader(trials)
    assert reader.join_trial(request, WAITING) is None and not reader.is_tried(request)
    program = reader.try_grammar(request, WAITING)
    assert program is not None and program.kind == "lark"
    found = reader.join_trial(request, WAITING)
    assert found is not None and found.result() is program and reader.is_tried(request)
    assert reader.read(request).grammar is program


def test_a_grammar_that_is_being_tried_is_not_tried() -> None:
    trials, request = ScriptedTrials(), ask(response_format=REGEX)
    reader = make_reader(trials)
    assert request.gen_config.grammar is not None
    trials.known[request.gen_config.grammar] = Future()
    assert reader.join_trial(request, WAITING) is not None and not reader.is_tried(request)


@pytest.mark.parametrize("options", [{}, {"response_format": {"type": "text"}}])
def test_without_a_grammar_nothing_is_tried(options: dict[str, Any]) -> None:
    for trials in (ScriptedTrials(), None):
        reader, request = make_reader(trials), ask(**options)
        assert reader.join_trial(request, WAITING) is None and reader.try_grammar(request, WAITING) is None
        assert reader.is_tried(request), "it waits for no trial of another request"
        assert reader.read(request).grammar is None


@pytest.mark.parametrize("of_request", [{"wants_answer": False}, {"pooling": "last"}])
def test_a_prompt_alone_follows_no_grammar(of_request: dict[str, Any]) -> None:
    trials = ScriptedTrials()
    reader, request = make_reader(trials), ask(response_format=REGEX, of_request=of_request)
    assert reader.is_tried(request)
    assert reader.try_grammar(request, WAITING) is None and reader.read(request).grammar is None and not trials.known


def test_grammars_need_somebody_who_tries_them() -> None:
    reader, request = make_reader(None), ask(response_format=REGEX)
    assert (
        reader.join_trial(request, WAITING) is None
        and reader.try_grammar(request, WAITING) is None
        and reader.is_tried(request)
    )
    error = find_error(request)
    assert error.param == "response_format" and "not supported here" in str(error)


def test_a_grammar_needs_a_token_that_ends_the_answer() -> None:
    model = change_model()
    model.checkpoint = SimpleNamespace(generation_config={}, config={})
    model.tokenizer = SimpleNamespace(eos_token_id=None)
    error = find_error(ask(response_format=REGEX), trials=ScriptedTrials(), model=model)
    assert error.param == "response_format" and "give stop_token_ids" in str(error)
    ended = ask(response_format=REGEX, stop_token_ids=[3])
    assert read(ended, trials=ScriptedTrials(), model=model).grammar is not None
    assert read(ask(), trials=ScriptedTrials(), model=model).grammar is None
