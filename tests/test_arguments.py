"""What a user hands to a pipeline with the built-in model: replaced parts, wrong arguments, odd strings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from seesay import ChatTemplateConfig, EngineConfig, GenerationConfig, VisionConfig, pipeline
from seesay.config import MediaLimits
from seesay.demo import CHECKPOINT
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError, ErrorCode
from seesay.processors.text.tokenizer import Tokenizer

SHORT = GenerationConfig(max_new_tokens=4)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with pipeline(backend_config=EngineConfig(device_type="cpu")) as pipe:
        yield pipe


@pytest.fixture
def pipe(shared: Any) -> Iterator[Any]:
    """The pipeline, with its parts put back afterwards."""
    tokenizer, template = shared.tokenizer, shared.chat_template
    yield shared
    shared.tokenizer, shared.chat_template = tokenizer, template


def test_a_tokenizer_of_transformers_is_wrapped(pipe: Any) -> None:
    expected = pipe("hello", SHORT).text
    pipe.tokenizer = AutoTokenizer.from_pretrained(str(CHECKPOINT))
    assert isinstance(pipe.tokenizer, Tokenizer)
    assert pipe("hello", SHORT).text == expected
    for wrong in (None, 5, "gpt2", object()):
        with pytest.raises(TypeError, match="tokenizer must be"):
            pipe.tokenizer = wrong
    assert pipe("hello", SHORT).text == expected


def test_a_template_by_name_or_configuration(pipe: Any) -> None:
    pipe.chat_template = "vicuna"
    assert pipe.chat_template.name == "vicuna" and "vicuna" in repr(pipe.chat_template)
    pipe.chat_template = ChatTemplateConfig("chatml", meta_instruction="Be brief.")
    assert "Be brief." in repr(pipe.chat_template)
    assert pipe("hello", SHORT).finish_reason in ("stop", "length")
    for wrong in (None, 5, dict[str, Any]()):
        with pytest.raises(TypeError, match="chat_template must be"):
            pipe.chat_template = wrong
    with pytest.raises(ConfigError, match="nonesuch"):
        pipe.chat_template = "nonesuch"


@pytest.mark.parametrize("name", [None, "chatml"])
def test_pieces_of_a_template_are_texts(pipe: Any, name: str | None) -> None:
    if name is not None:
        pipe.chat_template = name
        with pytest.raises(ConfigError, match="user must be a string, got None"):
            pipe.chat_template.user = None
    for attribute, wrong in (("meta_instruction", 5), ("stop_words", "abc"), ("stop_words", [1])):
        with pytest.raises(ConfigError, match=f"{attribute} must be .*, got"):
            setattr(pipe.chat_template, attribute, wrong)
    pipe.chat_template.stop_words = ["###"]
    assert pipe("hello", SHORT).finish_reason in ("stop", "length")


def test_names_of_things(pipe: Any) -> None:
    assert repr(pipe).startswith("Pipeline(AsyncEngine('seesay-demo', family=")
    assert "device='cpu', dtype='float32', session_len=" in repr(pipe.engine)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model_path": None}, TypeError, "model_path must be"),
        ({"model_path": 5}, TypeError, "model_path must be"),
        ({"model_path": ""}, CheckpointError, "model path must not be empty"),
        ({"backend_config": {}}, TypeError, "backend_config must be EngineConfig or TurbomindEngineConfig, got dict"),
        ({"backend_config": VisionConfig()}, TypeError, "backend_config must be"),
        ({"vision_config": EngineConfig()}, TypeError, "vision_config must be VisionConfig"),
        ({"chat_template_config": 5}, TypeError, "chat_template_config must be ChatTemplateConfig or str"),
        ({"chat_template_config": "nonesuch"}, ConfigError, "nonesuch"),
        ({"media_limits": {}}, TypeError, "media_limits must be MediaLimits"),
        ({"log_level": 10}, ConfigError, "log_level must be one of .*, got 10"),
    ],
)
def test_wrong_arguments_say_what_is_expected(arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        pipeline(**arguments)


def test_wrong_arguments_of_calls(pipe: Any) -> None:
    for wrong in (dict[str, Any](), EngineConfig(), 5, "greedy"):
        with pytest.raises(TypeError, match=f"gen_config must be a GenerationConfig .*not {type(wrong).__name__}"):
            pipe("hello", gen_config=wrong)
    with pytest.raises(TypeError, match="session must be Session, got int"):
        pipe.chat("hello", session=5)
    with pytest.raises(TypeError, match="sessions must be a Session or a list of Sessions, got int"):
        pipe.stream_infer("hello", sessions=5)


def test_halves_of_surrogate_pairs_end_their_request(pipe: Any) -> None:
    tool = {"role": "assistant", "content": "x", "reasoning_content": "a \udcff b"}
    message = {"role": "user", "content": [{"type": "text", "text": "\udfff"}]}
    answers = pipe(["bad \ud800 text", [message], "hello", [{"role": "user", "content": "hi"}, tool]], SHORT)
    assert [answer.finish_reason == "error" for answer in answers[:3]] == [True, True, False]
    for answer, half in ((answers[0], "ud800"), (answers[1], "udfff")):
        assert answer.error.code is ErrorCode.INVALID_REQUEST and half in answer.text
    assert answers[3].error is None or answers[3].error.code is ErrorCode.INVALID_REQUEST
    raw = pipe("raw \ud800", SHORT, do_preprocess=False)
    assert raw.error.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("option", ["stop_token_ids", "bad_token_ids"])
def test_token_ids_outside_the_vocabulary_are_named(pipe: Any, option: str) -> None:
    options: dict[str, Any] = {option: [3, 10_000_000]}
    answer = pipe("hello", GenerationConfig(max_new_tokens=2, **options))
    assert answer.error.param == option
    assert f"{option}: token id 10000000 is not in the vocabulary (0 to " in answer.text


def test_numbers_of_numpy_reach_the_engine(pipe: Any) -> None:
    plain: dict[str, Any] = {"max_new_tokens": 3, "top_k": 5, "random_seed": 7, "logprobs": 2, "bad_token_ids": [3]}
    given = {name: [np.int64(3)] if name == "bad_token_ids" else np.int64(value) for name, value in plain.items()}
    answers = [pipe("hello", GenerationConfig(do_sample=True, **options)) for options in (plain, given)]
    assert answers[0].error is None and answers[0].token_ids == answers[1].token_ids


def test_unknown_options_of_a_clip_list_all_that_are_known(pipe: Any) -> None:
    part = {"type": "video", "video": [np.zeros((32, 32, 3), np.uint8)] * 4, "speed": 2}
    answer = pipe([{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}], SHORT)
    assert (
        "'speed' is unknown" in answer.text
        and "fps, max_frames, min_frames, nframes, num_frames, sample_fps" in answer.text
    )


def test_pieces_of_a_stream_tell_the_length_of_the_prompt(pipe: Any) -> None:
    pieces = list(pipe.stream_infer("hello", gen_config=SHORT))
    assert len(pieces) > 1
    assert {piece.input_token_len for piece in pieces} == {pieces[-1].usage.prompt_tokens} != {0}


def test_perplexity_of_arrays_and_tensors(pipe: Any) -> None:
    ids = pipe.tokenizer.encode("a red circle")
    expected = pipe.get_ppl(ids)
    assert pipe.get_ppl(np.array(ids)) == pipe.get_ppl(torch.tensor(ids)) == expected
    assert pipe.get_ppl(np.array([ids, ids])) == pipe.get_ppl([torch.tensor(ids), ids]) == expected * 2
    chat = pipe.tokenizer.hf.apply_chat_template([{"role": "user", "content": "hi"}])
    assert pipe.get_ppl(chat) == pipe.get_ppl(chat["input_ids"]) != expected
    for wrong in (3, None, np.array([1.5, 2.5]), [[1, "a"]]):
        with pytest.raises(ValueError, match="input_ids must be a list of token ids"):
            pipe.get_ppl(wrong)


def test_sessions_longer_than_the_model_was_trained_for_warn(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("seesay")
    logger.addHandler(caplog.handler)
    try:
        config = EngineConfig(device_type="cpu", session_len=1_000_000, num_gpu_blocks=4)
        AsyncEngine(backend_config=config, media_limits=MediaLimits()).close()
    finally:
        logger.removeHandler(caplog.handler)
    assert any("session_len=1000000 is more than the" in message for message in caplog.messages)
