"""Models by name and requests by handle, with real engines of tiny checkpoints."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import held, loop_of, make_picture

from seesay.config import GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError, RequestError, StateError
from seesay.low_level import (
    Engine,
    GenerateRequestStatus,
    GenerationConfigBuilder,
    ModelState,
    RequestHandle,
    ResultQueue,
    RuntimeConfigBuilder,
    StartedRequest,
)
from seesay.offline.pipeline import Pipeline

PICTURE = make_picture(30, 41, 1)
LONG = GenerationConfigBuilder().early_stopping(False)
SHORT = GenerationConfigBuilder().max_new_tokens(6).early_stopping(False)
LIMIT_S = 60


def runtime(name: str, path: Path | str, *, max_length: int = 256) -> RuntimeConfigBuilder:
    builder = RuntimeConfigBuilder().model_name(name).model_dir(path).compute_unit("cpu").max_batch(4)
    return builder.max_length(max_length).engine_options(block_size=16)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[Engine]:
    """Two running models of different families."""
    with Engine() as engine:
        for name in ("llama", "qwen2_5_vl"):
            engine.install_model(runtime(name, tiny_checkpoint(name)))
            engine.start_model(name)
        yield engine


def read(queue: ResultQueue) -> list[int]:
    """All tokens that the queue still has, and those that come."""
    found: list[int] = []
    while (elements := queue.get(LIMIT_S)) is not None:
        found += elements.ids_from_generate
    assert queue.generate_status().is_over, "no tokens in a minute"
    return found


def answer(pipe: Pipeline, prompt: Any, **options: Any) -> list[int]:
    response = pipe(prompt, gen_config=GenerationConfig(max_new_tokens=6, ignore_eos=True), **options)
    assert response.finish_reason == "length", response
    return list(response.token_ids)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_pipeline(engine: Engine) -> None:
    """Of raw texts, ids, texts with pictures and conversations, asked of two models at the same time."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "game"}, {"type": "image", "image": PICTURE}]}]
    pipes = {name: Pipeline.from_engine(engine.async_engine(name)) for name in engine.model_states()}
    started: list[tuple[StartedRequest, list[int]]] = []
    for prompt in ("the game is", "frame"):
        for name, pipe in pipes.items():
            expected = answer(pipe, prompt, do_preprocess=False)
            ids = pipe.tokenizer.encode(prompt, add_special_tokens=True)
            started.append((engine.start_request_text(name, prompt, SHORT), expected))
            for form in (ids, np.array(ids), torch.tensor([ids])):
                started.append((engine.start_request_ids(name, form, SHORT), expected))
            templated = engine.start_request_text(name, prompt, SHORT, do_preprocess=True)
            started.append((templated, answer(pipe, prompt)))
    prompts: list[Any] = [("what?", PICTURE), messages]
    for seen in prompts:
        started.append((engine.start_request_text("qwen2_5_vl", seen, SHORT), answer(pipes["qwen2_5_vl"], seen)))
    assert len({tuple(expected) for _, expected in started}) > 4
    for (handle, queue), expected in started:
        assert engine.sync_request(handle.model_name, handle, LIMIT_S) is GenerateRequestStatus.GENERATE_FINISHED
        assert queue.generated_length() == 6 and read(queue) == expected
        engine.release_request(handle.model_name, handle)


def test_the_last_elements_have_what_is_known_at_the_end(engine: Engine) -> None:
    config = GenerationConfigBuilder().max_new_tokens(3).early_stopping(False).logprobs().top_logprobs(2)
    config.options(output_logits="generation")
    ids = [5 + k % 7 for k in range(40)]
    for num_cached in (0, 32):
        handle, queue = engine.start_request_ids("llama", ids, config)
        engine.sync_request("llama", handle, LIMIT_S)
        elements = queue.get()
        assert elements is not None and elements.finish_reason == "length"
        assert len(elements.ids_from_generate) == len(elements.token_logprobs_list) == 3 and elements.text
        for token_id, own, likely in zip(
            elements.ids_from_generate, elements.token_logprobs_list, elements.log_probs_list, strict=True
        ):
            assert len(likely) == 2 and likely[0] == (token_id, own) and likely[1][1] <= own
        logits = elements.tensors_from_model_inference["logits"]
        assert logits.argmax(-1).tolist() == elements.ids_from_generate
        assert elements.prefix_cache_len == num_cached
        assert queue.get() is None and queue.get_nowait() is None
        info = queue.request_stat_info()
        assert info["status"] == "generate_finished" and info["generated_tokens"] == info["completion_tokens"] == 3
        assert info["cached_tokens"] == num_cached and info["prompt_tokens"] == 40 and info["total_s"] > 0
        engine.release_request("llama", handle)


def test_lengths_and_stop_words(engine: Engine) -> None:
    def ask(config: GenerationConfigBuilder) -> tuple[list[int], str]:
        queue = engine.start_request_ids("llama", [7] * 20, config).queue
        return read(queue), queue.request_stat_info()["finish_reason"]

    tokenizer = engine.async_engine("llama").tokenizer
    [letter] = tokenizer.encode("e")
    repeating = {"logit_bias": {letter: 100.0}, "ignore_eos": True}
    free, reason = ask(GenerationConfigBuilder().options(**repeating).max_length(29))
    assert (free, reason) == ([letter] * 9, "length")
    one, reason = ask(GenerationConfigBuilder().options(**repeating).stop_words_ids([[letter]]))
    assert (one, reason) == ([], "stop")
    several, reason = ask(GenerationConfigBuilder().options(**repeating).stop_words_ids([[letter] * 3]))
    assert (several, reason) == ([letter] * 3, "stop")
    no_text = next(i for i in range(300) if "\ufffd" in tokenizer.decode([i]))
    for word in ([letter, no_text], [letter, min(tokenizer.special_ids)]):
        with pytest.raises(ConfigError, match="a word of several tokens must be plain text"):
            ask(GenerationConfigBuilder().stop_words_ids([word]))

    queue = engine.start_request_ids("llama", [7] * 20, GenerationConfigBuilder().max_length(20)).queue
    with pytest.raises(RequestError, match="max_length=20 leaves no token for the answer: the prompt alone has 20"):
        queue.get(LIMIT_S)


# --- the queue -------------------------------------------------------------------------------------------------------


def test_each_token_goes_to_one_of_many_readers(engine: Engine) -> None:
    expected = read(engine.start_request_ids("llama", [9] * 5, LONG).queue)
    queue = engine.start_request_ids("llama", [9] * 5, LONG).queue
    found: list[list[int]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(read(queue))) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(expected) == 251 and sorted(itertools.chain(*found)) == sorted(expected)


def test_timeouts_and_statuses(engine: Engine) -> None:
    with held(engine.async_engine("llama")):
        handle, queue = engine.start_request_ids("llama", [3] * 5, SHORT)
        assert queue.get_nowait() is None and queue.get(timeout_s=0.01) is None
        assert engine.sync_request("llama", handle, timeout_s=0.01) is GenerateRequestStatus.INIT
        assert queue.generated_length() == 0 and queue.request_stat_info() == {"status": "init", "generated_tokens": 0}
        with pytest.raises(ConfigError, match=r"timeout_s must be at least 0, or None, got -1"):
            queue.get(-1)
        for other in ("qwen2_5_vl", "qwen2_5_vl"):  # the other model goes on
            assert len(read(engine.start_request_ids(other, [3] * 5, SHORT).queue)) == 6
    assert len(read(queue)) == 6
    assert queue.generate_status() is GenerateRequestStatus.GENERATE_FINISHED


def test_statuses_follow_the_tokens() -> None:
    from seesay.values import OutputDelta

    queue = ResultQueue("a request")
    statuses = [queue.generate_status()]
    for delta in (
        OutputDelta(request_id=1, token_ids=(4,)),
        OutputDelta(request_id=1, token_ids=(5, 6), text="x"),
        OutputDelta(request_id=1, finish_reason="stop"),
    ):
        queue.put(delta)
        statuses.append(queue.generate_status())
    assert statuses == ["init", "context_finished", "generating", "generate_finished"]
    elements = queue.get()
    assert elements is not None and elements.ids_from_generate == [4, 5, 6] and elements.finish_reason == "stop"


def test_an_error_comes_after_the_tokens_before_it() -> None:
    from seesay.values import OutputDelta

    queue = ResultQueue("a request")
    queue.put(OutputDelta(request_id=1, token_ids=(4,)))
    queue.put(OutputDelta(request_id=1, token_ids=(5,), finish_reason="error", error=RuntimeError("no memory")))
    elements = queue.get()
    assert elements is not None and elements.ids_from_generate == [4, 5] and elements.finish_reason is None
    assert queue.generate_status() is GenerateRequestStatus.GENERATE_INTERRUPTED
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no memory"):
            queue.get()


def test_what_is_wrong_with_a_prompt_is_told(engine: Engine) -> None:
    for prompt, message in (
        (["one", "two"], "a request has one prompt: start one for each"),
        ([], "a request has one prompt"),
        ([{"role": "nobody", "content": "x"}], "unknown role 'nobody'"),
        (7, "this one is of type int"),
    ):
        with pytest.raises(RequestError, match=message):
            engine.start_request_text("llama", prompt)
    for ids, message in (([], "at least one token id"), ([[1], [2]], "start one for each"), ("x", "must be a list of")):
        with pytest.raises(RequestError, match=message):
            engine.start_request_ids("llama", ids)
    handle, queue = engine.start_request_text("qwen2_5_vl", ("what?", b"no picture"), SHORT)
    assert engine.sync_request("qwen2_5_vl", handle, LIMIT_S) is GenerateRequestStatus.GENERATE_INTERRUPTED
    with pytest.raises(RequestError, match=r"picture|image"):
        queue.get()


# --- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["preparing", "waiting", "generating"])
def test_a_request_can_be_stopped_at_every_stage(engine: Engine, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    owner = engine.async_engine("llama")
    begun, may_prepare = threading.Event(), threading.Event()
    if stage == "preparing":
        prepare: Any = owner._preparer.prepare

        def wait_and_prepare(*arguments: Any) -> Any:
            begun.set()
            assert may_prepare.wait(LIMIT_S)
            return prepare(*arguments)

        monkeypatch.setattr(owner._preparer, "prepare", wait_and_prepare)
        handle, queue = engine.start_request_ids("llama", [4] * 5, LONG)
        assert begun.wait(LIMIT_S)
        engine.stop_request("llama", handle)
        may_prepare.set()
    elif stage == "waiting":
        with held(owner):
            handle, queue = engine.start_request_ids("llama", [4] * 5, LONG)
            engine.stop_request("llama", handle)
    else:
        endless = GenerationConfigBuilder().early_stopping(False)
        handle, queue = engine.start_request_ids("llama", [4] * 5, endless)
        elements = queue.get(LIMIT_S)
        assert elements is not None and elements.ids_from_generate
        engine.stop_request("llama", handle)
    status = engine.sync_request("llama", handle, LIMIT_S)
    expected = {GenerateRequestStatus.GENERATE_INTERRUPTED}
    if stage == "generating":  # it may have been faster
        expected.add(GenerateRequestStatus.GENERATE_FINISHED)
    assert status in expected
    assert stage == "generating" or queue.generated_length() == 0
    num_left = len(read(queue))
    assert num_left <= queue.generated_length() == queue.request_stat_info()["generated_tokens"] <= 251
    engine.stop_request("llama", handle)  # of one that is over, nothing
    engine.release_request("llama", handle)


def test_a_stopped_request_can_be_released_before_it_ends(engine: Engine) -> None:
    with held(engine.async_engine("llama")):
        handle, queue = engine.start_request_ids("llama", [4] * 5, LONG)
        with pytest.raises(StateError, match="still running: wait with sync_request or end it with stop_request"):
            engine.release_request("llama", handle)
        engine.stop_request("llama", handle)
        engine.release_request("llama", handle)
    for call in (queue.get, queue.get_nowait):
        with pytest.raises(StateError, match="was released: read its queue before release_request"):
            call()
    for use in (engine.stop_request, engine.sync_request, engine.release_request):
        with pytest.raises(StateError, match="was released"):
            use("llama", handle)
    assert len(read(engine.start_request_ids("llama", [4] * 5, SHORT).queue)) == 6


# --- models ----------------------------------------------------------------------------------------------------------


def test_states_of_a_model(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with Engine() as engine:
        engine.install_model(runtime("a", tiny_checkpoint("llama"), max_length=64).build())
        assert engine.model_states() == {"a": ModelState.INITIAL}
        with pytest.raises(
            StateError, match="model 'a' is installed already: take another name, or call release_model"
        ):
            engine.install_model(runtime("a", tmp_path))
        with pytest.raises(StateError, match="model 'a' is initial: call start_model first"):
            engine.start_request_ids("a", [1])
        with pytest.raises(StateError, match="model 'b' is not installed"):
            engine.start_model("b")
        with pytest.raises(StateError, match="only a running model can be stopped"):
            engine.stop_model("a")
        engine.start_model("a", warm_up=False)
        assert engine.async_engine("a").stats().total_step_tokens == 0
        with pytest.raises(StateError, match="model 'a' is running: it can be started when it is stopped"):
            engine.start_model("a")
        with pytest.raises(StateError, match="model 'a' is running: call stop_model before release_model"):
            engine.release_model("a")
        first = read(engine.start_request_ids("a", [1, 5], SHORT).queue)
        with held(engine.async_engine("a")):
            handle, queue = engine.start_request_ids("a", [1, 5], LONG)
            stopping = threading.Thread(target=engine.stop_model, args=("a",))
            stopping.start()
        stopping.join(LIMIT_S)
        assert engine.model_states() == {"a": ModelState.STOPPED} and queue.generate_status().is_over
        num_generated = queue.generated_length()
        found = read(queue)
        assert len(found) == num_generated and found[:6] == first[:num_generated]
        engine.release_request("a", handle)
        engine.start_model("a")
        assert read(engine.start_request_ids("a", [1, 5], SHORT).queue) == first
        engine.install_model(runtime("broken", tmp_path))
        with pytest.raises(CheckpointError):
            engine.start_model("broken")
        assert engine.model_states() == {"a": ModelState.RUNNING, "broken": ModelState.INITIAL}
        engine.release_model("broken")
        assert repr(engine) == "Engine('a': running)"
    assert engine.model_states() == {}


def test_the_warm_up_computes_the_largest_steps_and_leaves_the_caches_empty(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    with Engine() as engine:
        engine.install_model(runtime("a", tiny_checkpoint("llama"), max_length=96))
        engine.start_model("a")
        stats = engine.async_engine("a").stats()
        sizes = dict(stats.step_sizes)
        assert stats.total_step_tokens >= 95 + 4 and sizes[4] >= 1
        assert stats.num_cached_kv_blocks == stats.num_used_kv_blocks == 0
        handle, _ = engine.start_request_ids("a", [1] * 95, SHORT)
        engine.sync_request("a", handle, LIMIT_S)
        assert handle._queue.request_stat_info()["cached_tokens"] == 0


def test_stopping_a_model_frees_it(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Although its handles and queues are kept."""
    with Engine() as engine:
        engine.install_model(runtime("a", tiny_checkpoint("llama"), max_length=64))
        engine.start_model("a", warm_up=False)
        kept = [engine.start_request_ids("a", [1, 5], SHORT) for _ in range(2)]
        engine.sync_request("a", kept[0].handle, LIMIT_S)
        owner = weakref.ref(engine.async_engine("a"))
        runner = weakref.ref(loop_of(engine.async_engine("a"))._runner)
        engine.stop_model("a")
        gc.collect()
        assert owner() is None and runner() is None
        queue = weakref.ref(kept[1].queue)
        assert len(read(kept[0].queue)) == 6
        engine.release_request("a", kept[0].handle)
        del kept
        gc.collect()
        assert queue() is None
        engine.release_model("a")


def test_threads_start_and_stop_requests_of_both_models(engine: Engine) -> None:
    expected = {name: read(engine.start_request_ids(name, [11] * 4, SHORT).queue) for name in engine.model_states()}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        name = ("llama", "qwen2_5_vl")[number % 2]
        try:
            for turn in range(8):
                handle, queue = engine.start_request_ids(name, [11] * 4, SHORT)
                if (number + turn) % 3 == 0:
                    engine.stop_request(name, handle)
                    engine.sync_request(name, handle, LIMIT_S)
                    assert read(queue) == expected[name][: queue.generated_length()]
                else:
                    assert read(queue) == expected[name]
                engine.release_request(name, handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert not failures, failures


def test_wrong_arguments_are_named(engine: Engine) -> None:
    handle, queue = engine.start_request_ids("llama", [1], SHORT)
    with pytest.raises(StateError, match="is of model 'llama', not of 'qwen2_5_vl'"):
        engine.stop_request("qwen2_5_vl", handle)
    with pytest.raises(TypeError, match="handle must be a RequestHandle, got int"):
        engine.stop_request("llama", 7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="GenerationConfigBuilder\\(mapping\\)"):
        engine.start_request_ids("llama", [1], {"top_k": 5})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a RuntimeConfig or its builder, got str"):
        engine.install_model("llama")  # type: ignore[arg-type]
    assert "RequestHandle(model_name='llama'" in repr(handle) and isinstance(handle, RequestHandle)
    assert len(read(queue)) == 6 and "generate_finished" in repr(queue)
    assert isinstance(engine.async_engine("llama"), AsyncEngine)
