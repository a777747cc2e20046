"""The pipeline's behaviour, over an engine that answers by rule."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Never, cast

import numpy as np
import pytest
from PIL import Image

import seesay
from seesay import GenerationConfig, Pipeline
from seesay.config import ChatTemplateConfig, EngineConfig, TurbomindEngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.offline.deprecated import with_pipeline_arguments
from seesay.system.log import set_up_logging
from seesay.values import GenerationRequest, MediaPart, Message, OutputDelta, StageTimings, Usage
from seesay.values.prompt_logprobs import PromptLogprobs

PICTURE = Image.new("RGB", (4, 4))


def spell(request: GenerationRequest) -> Any:
    if isinstance(request.prompt, str):
        return f"raw:{request.prompt}"
    turns = []
    for message in request.prompt:
        assert isinstance(message, Message)
        parts = ["<img>" if isinstance(part, MediaPart) else part.text for part in message.parts]
        turns.append(f"{message.role}:{''.join(parts)}")
    return "|".join(turns)


class FakeEngine:
    """Answers with what it was asked, word by word. A prompt with 'forever' never ends, one with 'bad' fails."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []
        self.batches: list[int] = []
        self.aborted: list[int] = []
        self.running: dict[int, Any] = {}
        self.is_closed = False
        self.tokenizer = "tokenizer"
        self.chat_template = "template"
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def submit_batch(self, requests: Any, on_output: Any, prompts: Any) -> Any:
        if self.is_closed:
            raise RequestError(ErrorCode.CLOSED, "the engine is closed")
        ids = [next(self._ids) for _ in requests]
        self.requests += requests
        self.batches.append(len(requests))
        for request_id, request in zip(ids, requests):
            self.running[request_id] = on_output
            threading.Thread(target=self._answer, args=(request_id, request, on_output), daemon=True).start()
        return ids

    def _answer(self, request_id: Any, request: GenerationRequest, on_output: Any) -> None:
        final = {
            "usage": Usage(prompt_tokens=5, completion_tokens=2),
            "timings": StageTimings(prefill_s=0.5),
            "finish_reason": "stop",
        }
        if isinstance(request.prompt, tuple) and isinstance(request.prompt[0], int):
            values = np.array([[-1.0], [-3.0]], np.float32)
            given = PromptLogprobs(ids=np.array([[5], [6]]), values=values, ranks=np.ones(2, np.int32))
            self._end(request_id, on_output, prompt_logprobs=given, **final)
            return
        text = spell(request)
        if "bad" in text.rpartition("user:")[2]:
            error = RequestError(ErrorCode.INVALID_MEDIA, "the picture is broken: send another")
            self._end(request_id, on_output, finish_reason="error", error=error)
            return
        on_output(OutputDelta(request_id=request_id, text="so ", token_ids=(7,), logprobs=({7: -0.5},)))
        if "forever" not in text:
            self._end(request_id, on_output, text=text, token_ids=(8,), logprobs=({8: -0.25},), **final)

    def _end(self, request_id: Any, on_output: Any, **fields: Any) -> None:
        with self._lock:
            if self.running.pop(request_id, None):
                on_output(OutputDelta(request_id=request_id, **fields))

    def abort(self, request_id: Any) -> None:
        self.aborted.append(request_id)
        on_output = self.running.get(request_id)
        if on_output:
            self._end(request_id, on_output, finish_reason="abort")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def engine() -> Any:
    return FakeEngine()


@pytest.fixture
def pipe(engine: FakeEngine) -> Iterator[Any]:
    with Pipeline.from_engine(cast(AsyncEngine, engine)) as pipe:
        yield pipe


# --- infer -----------------------------------------------------------------------------------------------------------


def test_one_prompt_gives_one_response(pipe: Any) -> None:
    response = pipe("hi")
    assert response.text == "so user:hi"
    assert (response.generate_token_len, response.input_token_len, response.finish_reason) == (2, 5, "stop")
    assert response.token_ids == [7, 8] and response.logprobs == [{7: -0.5}, {8: -0.25}]
    assert response.timings.prefill_s == 0.5 and response.error is None
    assert "text='so user:hi'" in repr(response) and "finish_reason='stop'" in str(response)


def test_batches_are_submitted_together_and_keep_their_order(pipe: Any, engine: FakeEngine) -> None:
    responses = pipe(["a", ("b", PICTURE), [{"role": "user", "content": "c"}]])
    assert [r.text for r in responses] == ["so user:a", "so user:<img>b", "so user:c"]
    assert [r.index for r in responses] == [0, 1, 2]
    assert len({r.session_id for r in responses}) == 3
    assert engine.batches == [3]
    assert pipe([]) == []
    assert isinstance(pipe(["a"]), list)
    assert pipe.batch_infer(["a"])[0].text == "so user:a"


def test_bad_items_do_not_disturb_their_siblings(pipe: Any, engine: FakeEngine) -> None:
    responses = pipe(["a", 5, "bad", ("x", PICTURE, 3)])
    assert [r.finish_reason for r in responses] == ["stop", "error", "error", "error"]
    assert responses[0].text == "so user:a"
    assert "a prompt must be" in responses[1].text and isinstance(responses[1].error, RequestError)
    assert responses[2].text == "the picture is broken: send another"
    assert [r.index for r in responses] == [0, 1, 2, 3]
    assert engine.batches == [2]
    assert pipe(7).finish_reason == "error"


def test_gen_config_per_prompt(pipe: Any, engine: FakeEngine) -> None:
    configs = [GenerationConfig(max_new_tokens=n) for n in (3, 4)]
    pipe(["a", "b"], gen_config=configs)
    assert [r.gen_config.max_new_tokens for r in engine.requests] == [3, 4]
    with pytest.raises(ValueError, match="2 for 1 prompts"):
        pipe("a", gen_config=configs)


def test_raw_prompts(pipe: Any) -> None:
    assert pipe("<s>x", do_preprocess=False).text == "so raw:<s>x"


def test_deprecated_arguments_warn_and_work(pipe: Any, engine: FakeEngine) -> None:
    with pytest.warns(DeprecationWarning, match="request_output_len, top_k") as caught:
        pipe("a", top_k=5, request_output_len=9)
    assert caught[0].filename == __file__
    config = engine.requests[-1].gen_config
    assert (config.top_k, config.max_new_tokens, config.do_sample) == (5, 9, True)
    with pytest.warns(DeprecationWarning):
        pipe.infer(["a"], gen_config=[GenerationConfig(max_new_tokens=3)], top_k=1, stop_words=["x"])
    config = engine.requests[-1].gen_config
    assert (config.top_k, config.max_new_tokens, config.do_sample, config.stop_words) == (1, 3, False, ["x"])
    with pytest.raises(TypeError, match="'frobnicate'"):
        pipe("a", frobnicate=1)
    with pytest.raises(TypeError, match=r"infer.*'chat_template_config'"):
        pipe("a", chat_template_config=None)


def test_requests_name_their_adapters(pipe: Any, engine: Any) -> None:
    pipe("a", adapter_name="lora")
    assert engine.requests[-1].adapter_name == "lora"
    pipe(["a", "b"], adapter_name=["lora", None])
    assert [request.adapter_name for request in engine.requests[-2:]] == ["lora", None]


def test_progress_bar(pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe(["a", "b"], use_tqdm=True)
    assert "2/2" in capsys.readouterr().err
    pipe(["a"])
    assert capsys.readouterr().err == ""


def test_interrupt_aborts_and_leaves_the_pipeline_usable(
    pipe: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedQueue:
        def put(self, delta: Any) -> None:
            pass

        def get(self) -> Never:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("queue.SimpleQueue", InterruptedQueue)
        with pytest.raises(KeyboardInterrupt):
            pipe(["forever", "forever"])
    assert sorted(engine.aborted) == [1, 2]
    assert pipe("hi").text == "so user:hi"


# --- streams ---------------------------------------------------------------------------------------------------------


def test_stream_gives_pieces(pipe: Any) -> None:
    pieces = list(pipe.stream_infer(["a", "bad", 3]))
    by_index = {i: [p for p in pieces if p.index == i] for i in range(3)}
    assert [p.text for p in by_index[0]] == ["so ", "user:a"]
    assert [p.finish_reason for p in by_index[0]] == [None, "stop"]
    assert [p.generate_token_len for p in by_index[0]] == [1, 2]
    assert [len(by_index[i]) for i in (1, 2)] == [1, 1]
    assert by_index[1][0].finish_reason == "error"


def test_stream_of_complete_answers(pipe: Any) -> None:
    (response,) = pipe.stream_infer("a", stream_response=False)
    assert response.text == "so user:a" and response.finish_reason == "stop"


@pytest.mark.parametrize("leave", ["break", "close", "forget"])
def test_leaving_a_stream_aborts(pipe: Any, engine: FakeEngine, leave: str) -> None:
    stream = pipe.stream_infer(["forever", "forever"])
    next(stream)
    if leave == "close":
        stream.close()
    del stream
    gc.collect()
    assert sorted(engine.aborted) == [1, 2]


def test_wrong_arguments_of_a_stream_raise_at_once(pipe: Any) -> None:
    with pytest.raises(ValueError, match="1 for 2 prompts"):
        pipe.stream_infer(["a", "b"], sessions=pipe.session())
    session = pipe.session()
    with pytest.raises(ValueError, match="sessions must be different"):
        pipe.stream_infer(["a", "b"], sessions=[session, session])


# --- sessions --------------------------------------------------------------------------------------------------------


def test_chat_remembers(pipe: Any) -> None:
    session = pipe.chat(("look", PICTURE))
    assert session.response.text == "so user:<img>look"
    assert session.response.session_id == session.id
    again = pipe.chat("and?", session=session)
    assert again is session
    assert session.response.text == "so user:<img>look|assistant:so user:<img>look|user:and?"
    assert [answer[:7] for _, answer in session.history] == ["so user"] * 2
    assert session.history[0][0] == ("look", PICTURE)
    assert not session.is_answering


def test_a_session_without_an_answer_says_so(pipe: Any) -> None:
    session = pipe.session()
    with pytest.raises(AttributeError, match=rf"session {session.id} has no response: ask with pipe.chat"):
        _ = session.response
    assert getattr(session, "response", None) is None
    pipe.chat("a", session=session)
    session.close()
    with pytest.raises(AttributeError, match="has no response: it is closed"):
        _ = session.response


def test_chat_streams(pipe: Any) -> None:
    session = pipe.session()
    stream = pipe.chat("a", session=session, stream_response=True)
    assert session.generator is stream
    assert "".join(piece.text for piece in stream) == "so user:a"
    assert session.response.text == "so user:a" and session.generator is None
    assert len(session.history) == 1


def test_a_failed_turn_is_not_remembered(pipe: Any) -> None:
    session = pipe.chat("bad")
    assert session.response.finish_reason == "error" and session.history == []
    pipe.chat(3, session=session)
    assert "a prompt must be" in session.response.text
    pipe.chat("good", session=session)
    assert session.response.text == "so user:good"


def test_an_abandoned_turn_is_not_remembered(pipe: Any, engine: FakeEngine) -> None:
    session = pipe.session()
    for _ in pipe.chat("forever", session=session, stream_response=True):
        break
    assert engine.aborted == [1] and session.history == []
    assert pipe.chat("a", session=session).response.text == "so user:a"


def test_stopping_keeps_what_was_said(pipe: Any) -> None:
    session = pipe.session()
    stream = pipe.chat("forever", session=session, stream_response=True)
    next(stream)
    with pytest.raises(ValueError, match="still answering"):
        pipe.chat("b", session=session)
    pipe.stop_session(session)
    assert [piece.finish_reason for piece in stream] == ["abort"]
    assert session.history == [("forever", "so ")]


def test_closed_sessions(pipe: Any, engine: FakeEngine) -> None:
    with pipe.session() as session:
        stream = pipe.chat("forever", session=session, stream_response=True)
        next(stream)
    assert engine.aborted == [1]
    list(stream)
    assert session.history == [] and session.messages == ()
    with pytest.raises(ValueError, match="is closed"):
        pipe.chat("b", session=session)


def test_stream_infer_continues_sessions(pipe: Any) -> None:
    sessions = [pipe.session(), pipe.session()]
    list(pipe.stream_infer(["a", "b"], sessions=sessions))
    list(pipe.stream_infer("c", sessions=sessions[1]))
    assert sessions[1].response.text == "so user:b|assistant:so user:b|user:c"
    assert [len(s.history) for s in sessions] == [1, 2]
    with pytest.raises(ValueError, match="do_preprocess"):
        list(pipe.stream_infer("c", sessions=sessions[1], do_preprocess=False))


# --- the rest --------------------------------------------------------------------------------------------------------


def test_perplexity(pipe: Any, engine: FakeEngine) -> None:
    assert pipe.get_ppl([1, 2, 3]) == [2.0]
    assert pipe.get_ppl([[1, 2, 3], [4, 5]]) == [2.0, 2.0]
    assert engine.requests[-1].prompt == (4, 5) and engine.requests[-1].gen_config.prompt_logprobs == 0
    assert not engine.requests[-1].wants_answer
    assert pipe.get_ppl([]) == []
    with pytest.raises(ValueError, match="at least two tokens, got 1"):
        pipe.get_ppl([[1]])
    with pytest.raises(ValueError, match="list of token ids"):
        pipe.get_ppl([["text"]])


def test_async(pipe: Any, engine: FakeEngine) -> None:
    async def run() -> Any:
        one, many = await asyncio.gather(pipe.async_batch_infer("a"), pipe.async_batch_infer(["b", 3]))
        task = asyncio.create_task(pipe.async_batch_infer("forever"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return one, many

    one, many = asyncio.run(run())
    assert one.text == "so user:a"
    assert [r.finish_reason for r in many] == ["stop", "error"]
    assert len(engine.aborted) == 1


def test_tokenizer_and_template_can_be_replaced(pipe: Any, engine: FakeEngine) -> None:
    assert (pipe.tokenizer, pipe.chat_template) == ("tokenizer", "template")
    pipe.tokenizer, pipe.chat_template = "t2", "c2"
    assert (engine.tokenizer, engine.chat_template) == ("t2", "c2")
    assert pipe.engine is engine


def test_close(engine: FakeEngine) -> None:
    pipe = Pipeline.from_engine(cast(AsyncEngine, engine))
    pipe.close()
    pipe.close()
    with pytest.raises(RequestError, match="closed"):
        pipe("a")


def test_pipeline_arguments() -> None:
    with pytest.raises(TypeError, match=r"'session_len'.*EngineConfig\(session_len=8\)"):
        seesay.pipeline(session_len=8)
    with pytest.raises(TypeError, match="'frobnicate'"):
        seesay.pipeline(frobnicate=8)
    with pytest.raises(ConfigError, match="only 'ngram', 'draft', 'mtp' and 'eagle3' are, got 'medusa'"):
        seesay.pipeline(speculative_config={"method": "medusa"})
    with pytest.raises(ConfigError, match="log_level"):
        seesay.pipeline(log_level="LOUD")
    with pytest.warns(DeprecationWarning, match="backend, tp"), pytest.raises(ConfigError, match="tp"):
        seesay.pipeline(backend="pytorch", tp=0)


def test_deprecated_pipeline_arguments_work() -> None:
    arguments = {"backend": "turbomind", "model_name": "vicuna", "instance_num": 8}
    with pytest.warns(DeprecationWarning):
        backend, template = with_pipeline_arguments(None, None, arguments)
    assert isinstance(template, ChatTemplateConfig)
    assert backend == EngineConfig(max_batch_size=8) and template.model_name == "vicuna"
    with pytest.warns(DeprecationWarning):
        backend, _ = with_pipeline_arguments(TurbomindEngineConfig(session_len=9), None, {"instance_num": 8})
    assert backend == replace(TurbomindEngineConfig(session_len=9), max_batch_size=8)
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="'tpu'"):
        with_pipeline_arguments(None, None, {"backend": "tpu"})


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("session_len", 9, "backend_config=EngineConfig(session_len=9)"),
        ("max_new_tokens", 9, "pipe(prompts, gen_config=GenerationConfig(max_new_tokens=9))"),
        ("gen_config", None, "pipe(prompts, gen_config="),
        ("embedding_cache_bytes", 9, "vision_config=VisionConfig(embedding_cache_bytes=9)"),
    ],
)
def test_an_argument_in_the_wrong_place_is_refused_with_the_right_one(name: str, value: Any, place: str) -> None:
    with pytest.raises(TypeError, match=re.escape(place)):
        with_pipeline_arguments(None, None, {name: value})


@pytest.fixture
def quiet_logger() -> Iterator[Any]:
    logger = logging.getLogger("seesay")
    before = logger.level, list(logger.handlers)
    yield
    logger.level, logger.handlers = before
    set_up_logging("WARNING")
    logger.level, logger.handlers = before


def test_prompts_in_the_log_are_shortened(quiet_logger: Any, caplog: pytest.LogCaptureFixture) -> None:
    set_up_logging("info", 4)
    logging.getLogger("seesay.prompts").info("prompt: %s", "abcdefgh")
    assert caplog.messages == ["prompt: abcd… (8 characters)"]
    set_up_logging("WARNING")
    logging.getLogger("seesay.prompts").info("prompt: %s", "abcdefgh")
    assert len(caplog.messages) == 1
