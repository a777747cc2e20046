"""AsyncEngine on tiny random checkpoints: endings, errors, aborts, batching of media, sampling options."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, collect, held, join, loop_of, make_picture, messages_of, parse
from other_weights import copy_with_other_weights, read_weights
from rank_processes import find_children
from waiting import wait_until
from watched_runner import watched

from seesay.config import ChatTemplateConfig, EngineConfig, GenerationConfig, VisionConfig
from seesay.engine.commands import ModelStatus
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import LaunchedStep
from seesay.llm.running.runner import ModelRunner
from seesay.offline.pipeline import Pipeline
from seesay.processors.media.picture import Picture
from seesay.values import GenerationRequest, OutputDelta

CPU = EngineConfig(device_type="cpu", block_size=16)
ENGINE_PROCESS = "seesay.engine.process.child"


def check_all_free(engine: AsyncEngine) -> None:
    """Nothing runs, no block is used and no embedding is pinned."""
    wait_until(lambda: loop_of(engine).stats().num_running + loop_of(engine).stats().num_waiting == 0)
    wait_until(lambda: loop_of(engine).stats().num_used_kv_blocks == 0)
    wait_until(lambda: loop_of(engine).embeddings.store.stats().pinned_embedding_bytes == 0)


@pytest.fixture(scope="module")
def text_engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=CPU) as engine:
        yield engine
        check_all_free(engine)


@pytest.fixture
def vision_engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=CPU, vision_config=VisionConfig(max_batch_size=4)) as engine:
        yield engine
        check_all_free(engine)


# --- media -----------------------------------------------------------------------------------------------------------


def test_tower_calls_are_batched_across_requests(vision_engine: AsyncEngine) -> None:
    worker = loop_of(vision_engine).embeddings.worker
    assert worker is not None
    worker._max_wait_s = 60.0  # as long as a loaded machine needs to prepare the next picture
    pictures = [make_picture(24 + 4 * seed, 40, seed) for seed in range(8)]
    ask(vision_engine, parse([("what?", picture) for picture in pictures], max_new_tokens=3))
    assert (worker.num_calls, worker.num_items) == (2, 8)
    ask(vision_engine, parse([("and now?", picture) for picture in pictures], max_new_tokens=3))
    assert (worker.num_calls, worker.num_items) == (2, 8)


def test_equal_pictures_in_flight_are_encoded_once(vision_engine: AsyncEngine) -> None:
    worker = loop_of(vision_engine).embeddings.worker
    assert worker is not None
    requests = parse([(f"question {k}", make_picture(40, 30, 50)) for k in range(6)], max_new_tokens=3)
    outputs = ask(vision_engine, requests)
    assert all(output.error is None for output in outputs)
    assert worker.num_items == 1


def test_bad_media_end_their_request_only(vision_engine: AsyncEngine, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    odd = {"url": make_picture(40, 30, 2), "max_dynamic_patch": 3}
    prompts = [
        ("one", make_picture(40, 30, 1)),
        ("two", str(broken)),
        ("three", tmp_path / "none.png"),
        "four",
        [{"role": "user", "content": [{"type": "image_url", "image_url": odd}]}],
    ]
    good, bad, missing, text, option = ask(vision_engine, parse(prompts, max_new_tokens=3))
    assert good.finish_reason == text.finish_reason == "length"
    for output, words in (
        (bad, ["broken.png"]),
        (missing, ["none.png"]),
        (option, ["max_dynamic_patch", "min_pixels"]),
    ):
        assert output.finish_reason == "error" and isinstance(output.error, RequestError)
        assert all(word in output.error.message for word in words), output.error.message


def test_failing_tower_ends_the_requests_that_need_it(
    vision_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = loop_of(vision_engine).embeddings.worker
    assert worker is not None
    assert worker._encoder is not None
    encode = worker._encoder.encode

    def fail_on_some(features: Sequence[Any]) -> Any:
        if any(entry["grid"] == (1, 12, 12) for entry in features):
            raise ZeroDivisionError("a bad picture")
        return encode(features)

    monkeypatch.setattr(worker._encoder, "encode", fail_on_some)
    prompts = [("a", make_picture(40, 30, 60)), ("b", make_picture(48, 48, 61)), "c", ("d", make_picture(40, 30, 62))]
    outputs = ask(vision_engine, parse(prompts, max_new_tokens=3))
    assert [output.finish_reason for output in outputs] == ["length", "error", "length", "length"]
    assert isinstance(outputs[1].error, RequestError) and outputs[1].error.code is ErrorCode.INTERNAL


def test_disabled_vision_encoder_refuses_pictures(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", disable_vision_encoder=True)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        refused, text = ask(engine, parse([("a", make_picture(40, 30, 1)), "b"], max_new_tokens=3))
        assert loop_of(engine).embeddings.worker is None
    assert isinstance(refused.error, RequestError) and "disable_vision_encoder" in refused.error.message
    assert text.finish_reason == "length"


# --- how an answer ends ----------------------------------------------------------------------------------------------


def test_one_final_delta_with_usage_and_timings(vision_engine: AsyncEngine) -> None:
    deltas = collect(vision_engine, parse([("what?", make_picture(40, 30, 3))], max_new_tokens=5, ignore_eos=True))[0]
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["length"]
    final = deltas[-1]
    assert final.usage is not None and final.timings is not None
    assert final.usage.completion_tokens == 5 and final.usage.media_tokens > 0
    timings = final.timings
    assert 0 < timings.time_to_first_token_s < timings.total_s
    assert min(timings.preprocess_s, timings.encode_s, timings.prefill_s, timings.decode_s) > 0


def test_the_time_of_a_batch_counts_once_for_its_pictures(vision_engine: AsyncEngine) -> None:
    pictures = [make_picture(56, 56, 700 + k) for k in range(6)]
    final = ask(vision_engine, parse([("what?", pictures)], max_new_tokens=2, ignore_eos=True))[0]
    assert final.timings is not None
    assert 0 < final.timings.encode_s < final.timings.time_to_first_token_s


def test_stop_words_cross_tokens(text_engine: AsyncEngine) -> None:
    config: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    free = ask(text_engine, parse(["tell me"], **config))[0]
    text = free.text
    start = next(i for i in range(5, len(text) - 3) if text.find(text[i : i + 3]) == i and "�" not in text[i : i + 3])
    stop = text[start : start + 3]
    pieces = collect(text_engine, parse(["tell me"], stop_words=[stop], **config))[0]
    assert pieces[-1].stop_reason == stop
    output = join(pieces)
    assert output.text == text[:start] and output.finish_reason == "stop"
    assert free.text.startswith("".join(delta.text for delta in pieces))
    kept = ask(text_engine, parse(["tell me"], stop_words=[stop], include_stop_str_in_output=True, **config))[0]
    assert kept.text == text[: start + 3]


def test_stop_and_bad_token_ids_and_lengths(text_engine: AsyncEngine) -> None:
    config: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}
    ids = ask(text_engine, parse(["go"], **config))[0].token_ids
    index = next(i for i in range(4, 30) if ids.index(ids[i]) == i)
    output = ask(text_engine, parse(["go"], stop_token_ids=[ids[index]], **config))[0]
    assert output.token_ids == ids[:index] and output.finish_reason == "stop"
    assert output.usage is not None and output.usage.completion_tokens == index
    later = ask(text_engine, parse(["go"], stop_token_ids=[ids[index]], min_new_tokens=index + 2, **config))[0]
    assert len(later.token_ids) >= index + 2 and ids[index] not in later.token_ids[: index + 2]
    without = ask(text_engine, parse(["go"], bad_token_ids=[ids[0]], **config))[0]
    assert ids[0] not in without.token_ids
    word = text_engine.tokenizer.decode([ids[index]])
    if text_engine.tokenizer.encode(word) == [ids[index]]:
        assert ids[index] not in ask(text_engine, parse(["go"], bad_words=[word], **config))[0].token_ids
    assert len(ask(text_engine, parse(["go"], max_new_tokens=1, ignore_eos=True))[0].token_ids) == 1


def test_eos_ends_unless_ignored(text_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ask(text_engine, parse(["go"], max_new_tokens=10, ignore_eos=True))[0].token_ids
    index = next(i for i in range(2, 10) if ids.index(ids[i]) == i)
    monkeypatch.setattr(text_engine._preparer.answers, "eos_token_ids", (ids[index],))
    output = ask(text_engine, parse(["go"], max_new_tokens=10))[0]
    assert output.token_ids == ids[:index] and output.finish_reason == "stop"
    assert ask(text_engine, parse(["go"], max_new_tokens=10, ignore_eos=True))[0].token_ids == ids


def test_a_status_that_cannot_be_read_ends_the_request(
    text_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> ModelStatus:
        raise OSError("no answer from the owner of the process")

    with monkeypatch.context() as patches:
        patches.setattr(text_engine.core, "confirm_status", fail)
        failed = ask(text_engine, parse(["go", "go on"], max_new_tokens=1))
    assert [each.finish_reason for each in failed] == ["error", "error"]
    assert all(each.error is not None and "no answer from the owner" in str(each.error) for each in failed)
    assert ask(text_engine, parse(["go"], max_new_tokens=1))[0].finish_reason == "length"


def test_min_new_tokens_holds_for_text_stop_words(text_engine: AsyncEngine) -> None:
    config: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    free = ask(text_engine, parse(["tell me"], **config))[0]
    text = free.text
    start = next(
        i for i in range(5, len(text) - 3) if text.find(text[i : i + 3]) == i and "\ufffd" not in text[i : i + 3]
    )
    stop = {**config, "stop_words": [text[start : start + 3]]}
    early = ask(text_engine, parse(["tell me"], **stop))[0]
    assert early.text == text[:start] and len(early.token_ids) < 60
    for streams in (False, True):
        requests = parse(["tell me"], min_new_tokens=len(early.token_ids), **stop)
        later = ask(text_engine, [replace(request, streams=streams) for request in requests])[0]
        again = text.find(text[start : start + 3], start + 1)
        assert later.text == (text if again < 0 else text[:again])
    same = ask(text_engine, parse(["tell me"], min_new_tokens=len(early.token_ids) - 1, **stop))[0]
    assert same.text == early.text, "the word is complete one token later"


def test_ignore_eos_goes_past_the_ends_of_a_template(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The special tokens that end a template's turns are ends of the model's kind; what a user asks for is not."""
    path = str(tiny_checkpoint("llama"))
    pieces: dict[str, Any] = {"user": "[", "eoh": "]", "assistant": "(", "eoa": ")"}
    with AsyncEngine(path, backend_config=CPU, chat_template_config=ChatTemplateConfig("mine", **pieces)) as engine:
        end = engine.tokenizer.token_id("<|im_start|>")
        config: dict[str, Any] = {"max_new_tokens": 8, "logit_bias": {end: 100.0}}
        engine.chat_template.stop_words = ["<|im_start|>"]
        stopped, ignoring, own, held = ask(
            engine,
            [
                *parse(["go"], **config),
                *parse(["go"], ignore_eos=True, **config),
                *parse(["go"], ignore_eos=True, stop_words=["<|im_start|>"], **config),
                *parse(["go"], min_new_tokens=3, **config),
            ],
        )
        assert (stopped.finish_reason, stopped.token_ids) == ("stop", [])
        assert (ignoring.finish_reason, ignoring.token_ids) == ("length", [end] * 8)
        assert (own.finish_reason, own.token_ids) == ("stop", [])
        assert (held.finish_reason, len(held.token_ids)) == ("stop", 3)


@pytest.mark.parametrize("is_ahead", (False, True))
def test_a_prompt_of_exactly_the_context_can_be_scored(is_ahead: bool, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Its log-probabilities and its embedding, in pieces and beside answers; one token more is refused."""
    config = EngineConfig(
        device_type="cpu", session_len=40, block_size=8, max_prefill_token_num=16, async_scheduling=is_ahead
    )
    ids = tuple(range(3, 43))
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=replace(config, session_len=60)) as roomy:
        [[expected]] = collect(roomy, [score(ids)])
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config) as engine:
        answer = parse(["go"], max_new_tokens=10, ignore_eos=True)
        requests = [score(ids), replace(score(ids), pooling="mean"), *answer, score((*ids, 5))]
        requests.append(replace(score(ids), wants_answer=True))
        scored, embedded, _, longer, asking = (deltas[-1] for deltas in collect(engine, requests))
        assert scored.error is None and embedded.error is None
        assert scored.prompt_logprobs is not None and expected.prompt_logprobs is not None
        assert scored.prompt_logprobs.values == pytest.approx(expected.prompt_logprobs.values, abs=1e-5)
        assert scored.prompt_logprobs.values.shape == (39, 1)
        assert (scored.token_ids, scored.text, scored.finish_reason) == ((), "", "length")
        assert embedded.pooled is not None and embedded.finish_reason == "stop"
        for refused, words in ((longer, "41 tokens, but it may have 40"), (asking, "40 tokens, but prompt and answer")):
            assert isinstance(refused.error, RequestError) and refused.error.code is ErrorCode.CONTEXT_TOO_LONG
            assert words in refused.error.message
        losses = Pipeline.from_engine(engine).get_ppl([list(ids), list(ids[:7])])
        assert losses[0] == pytest.approx(-expected.prompt_logprobs.values.sum() / 39, abs=1e-5)
        check_all_free(engine)


def score(ids: tuple[int, ...]) -> GenerationRequest:
    config = GenerationConfig(prompt_logprobs=0)
    return GenerationRequest(prompt=ids, gen_config=config, wants_answer=False, streams=False)


def test_too_long_prompt_names_both_numbers(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", session_len=40)
    with AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=config) as engine:
        long, short = ask(engine, parse(["word " * 100, "hi"], max_new_tokens=100, ignore_eos=True))
    assert isinstance(long.error, RequestError) and long.error.code is ErrorCode.CONTEXT_TOO_LONG
    assert "40" in long.error.message and "session_len" in long.error.message
    assert short.finish_reason == "length" and short.usage is not None
    assert short.usage.prompt_tokens + short.usage.completion_tokens == 40


def test_token_ids_are_prompts(text_engine: AsyncEngine) -> None:
    rendered = text_engine.chat_template.render(messages_of(parse(["hello"])[0]))
    ids = tuple(text_engine.tokenizer.encode(rendered.text))
    config = GenerationConfig(max_new_tokens=6, ignore_eos=True)
    same, bad = ask(
        text_engine,
        [GenerationRequest(prompt=ids, gen_config=config), GenerationRequest(prompt=(5, 10**6), gen_config=config)],
    )
    assert same.token_ids == ask(text_engine, parse(["hello"], config))[0].token_ids
    assert isinstance(bad.error, RequestError) and "1000000" in bad.error.message


# --- sampling --------------------------------------------------------------------------------------------------------


def test_seeds_repeat_whatever_runs_beside(text_engine: AsyncEngine) -> None:
    config = GenerationConfig(
        do_sample=True, temperature=1.5, top_k=0, random_seed=7, max_new_tokens=20, ignore_eos=True
    )
    alone = ask(text_engine, parse(["sing"], config))[0].token_ids
    others = [GenerationConfig(do_sample=True, max_new_tokens=20, ignore_eos=True) for _ in range(5)]
    beside = ask(text_engine, parse([*"abcde", "sing"], *others, config))
    assert beside[-1].token_ids == alone
    unseeded = {ask(text_engine, parse(["sing"], others[0]))[0].text for _ in range(3)}
    assert len(unseeded) == 3


def test_logprobs_and_logits(text_engine: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=5, ignore_eos=True, logprobs=3, output_logits="generation")
    output = ask(text_engine, parse(["go"], config))[0]
    assert output.logits.shape[0] == 5 and output.logprobs is not None and len(output.logprobs) == 5
    expected = torch.log_softmax(output.logits, -1)
    for step, (token_id, entry) in enumerate(zip(output.token_ids, output.logprobs)):
        assert len(entry) == 3 and token_id in entry
        assert entry[token_id] == pytest.approx(float(expected[step, token_id]), abs=1e-4)


def test_prompt_logprobs_come_once_with_the_first_tokens(text_engine: AsyncEngine) -> None:
    """Streamed or not, before a stop word, and behind a prompt of one token."""
    ids = tuple(text_engine.tokenizer.encode("the frame in the game"))
    config = GenerationConfig(max_new_tokens=4, ignore_eos=True, prompt_logprobs=2)
    plain = GenerationRequest(prompt=ids, gen_config=config)
    first = ask(text_engine, [plain])[0]
    assert first.usage is not None and first.usage.cached_tokens == 0
    ask(text_engine, [replace(plain, gen_config=GenerationConfig(max_new_tokens=40, ignore_eos=True))])
    stopped = replace(config, stop_words=[first.text[:1], "never to be seen"])
    others = [replace(plain, streams=False), replace(plain, gen_config=stopped)]
    for request in (plain, *others):
        deltas = collect(text_engine, [request])[0]
        [place] = [index for index, delta in enumerate(deltas) if delta.prompt_logprobs is not None]
        assert not any(delta.token_ids for delta in deltas[:place]), "they are not later than the first token"
        answer = join(deltas)
        assert answer.prompt_logprobs is not None and first.prompt_logprobs is not None
        assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(ids)
        for entry, expected in zip(answer.prompt_logprobs[1:], first.prompt_logprobs[1:], strict=True):
            assert entry == pytest.approx(expected, abs=1e-5), "also where the prompt is in the prefix cache"
        assert answer.usage is not None and answer.usage.cached_tokens == 0
    [short] = ask(text_engine, [replace(plain, prompt=ids[:1])])
    assert short.prompt_logprobs == [None] and short.error is None


def test_failing_logits_processor_ends_its_request_only(text_engine: AsyncEngine) -> None:
    def fail(token_ids: Any, logits: Any) -> Any:
        raise ValueError("no thanks")

    def forbid(token_ids: Any, logits: Any) -> Any:
        logits[:100] = -torch.inf
        return logits

    configs = [
        GenerationConfig(max_new_tokens=4, ignore_eos=True, logits_processors=processors)
        for processors in (None, [fail], [forbid], [lambda _, logits: logits * torch.nan])
    ]
    plain, failed, forbidden, spoiled = ask(text_engine, parse(["a", "b", "c", "d"], *configs))
    assert plain.finish_reason == forbidden.finish_reason == "length"
    assert failed.finish_reason == "error" and "no thanks" in str(failed.error)
    assert "a logits processor failed: ValueError: it must return numbers, and returned NaN" in str(spoiled.error)
    assert min(forbidden.token_ids) >= 100


def test_answers_follow_their_grammar(text_engine: AsyncEngine) -> None:
    """It is compiled once in a process of its own before."""
    formats = [{"type": "regex_schema", "regex_schema": pattern} for pattern in ("[ab]{3}", "(")]
    requests = [parse(["hello"], max_new_tokens=8, response_format=each)[0] for each in formats]
    good, bad = ask(text_engine, requests)
    assert good.error is None and len(good.text) == 3 and set(good.text) <= set("ab")
    assert isinstance(bad.error, RequestError) and bad.error.code is ErrorCode.INVALID_REQUEST


def test_penalties_and_biases_reach_the_sampler(text_engine: AsyncEngine) -> None:
    config: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    free, never, always, varied, odd = ask(
        text_engine,
        parse(
            ["go"] * 5,
            GenerationConfig(**config),
            GenerationConfig(logit_bias={ask(text_engine, parse(["go"], **config))[0].token_ids[0]: -100}, **config),
            GenerationConfig(logit_bias={7: 100.0}, **config),
            GenerationConfig(logit_bias={7: 100.0}, frequency_penalty=2, presence_penalty=2, **config),
            GenerationConfig(logit_bias={10**6: 1.0}, **config),
        ),
    )
    assert free.token_ids[0] not in never.token_ids
    assert always.token_ids == [7] * 24
    assert varied.token_ids[0] == 7
    assert isinstance(odd.error, RequestError) and odd.error.param == "logit_bias" and "1000000" in odd.error.message


@pytest.mark.parametrize(
    "wrong",
    [
        {"presence_penalty": 2.1},
        {"frequency_penalty": -3},
        {"logit_bias": {1: 101}},
        {"logit_bias": {-1: 1}},
        {"logit_bias": {"a": 1}},
        {"logit_bias": [1]},
        {"logit_bias": {1: float("nan")}},
    ],
    ids=str,
)
def test_wrong_penalties_and_biases_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GenerationConfig(**wrong)


# --- embeddings ------------------------------------------------------------------------------------------------------


def pooled(engine: AsyncEngine, prompts: Sequence[Any]) -> list[OutputDelta]:
    requests = [replace(request, pooling="mean") for request in parse(prompts, max_new_tokens=9)]
    deltas = collect(engine, requests)
    assert all(len(own) == 1 for own in deltas), "an embedding is one final delta"
    return [own[0] for own in deltas]


def mean_states(engine: AsyncEngine, prompts: Sequence[Any]) -> list[torch.Tensor]:
    answers = ask(engine, parse(prompts, max_new_tokens=1, ignore_eos=True, output_last_hidden_state="all"))
    return [answer.last_hidden_state[: answer.input_token_len].mean(dim=0) for answer in answers]


POOLED = [
    "the frame " * 12,
    ("what is it? ", make_picture(40, 60, 80)),
    ("and it?", [make_picture(70, 33, 81), make_picture(24, 24, 82)]),
]


@pytest.mark.parametrize("options", [{}, {"max_prefill_token_num": 7}], ids=["whole", "chunked"])
def test_embeddings_are_means_over_the_prompt(tiny_checkpoint: Callable[[str], Path], options: dict[str, Any]) -> None:
    config = EngineConfig(device_type="cpu", block_size=4, **options)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        expected = mean_states(engine, POOLED)
        for final, mean in zip(pooled(engine, POOLED), expected, strict=True):
            assert final.finish_reason == "stop" and final.text == "" and final.token_ids == ()
            assert final.usage is not None and final.usage.completion_tokens == 0
            assert final.usage.cached_tokens == 0, "cached positions have no hidden state"
            assert final.pooled.dtype == torch.float32
            torch.testing.assert_close(final.pooled, mean, atol=1e-5, rtol=1e-4)
        assert ask(engine, parse(["x"], max_new_tokens=1))[0].pooled is None
        check_all_free(engine)


def test_embeddings_survive_preemption(tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Older answers grow while long prompts are pooled in small chunks, until there is no block left."""
    prompts = [f"{name} in the frame " * 12 for name in "ab"]
    config = EngineConfig(device_type="cpu", block_size=4, num_gpu_blocks=56, max_prefill_token_num=8)
    with AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=config) as engine:
        expected = [mean_states(engine, [prompt])[0] for prompt in prompts]
        interrupted = []
        preempt = loop_of(engine)._scheduler._preemption.preempt

        def watch(seq: Any) -> None:
            interrupted.append((seq.params.pooling, seq.num_computed))
            preempt(seq)

        monkeypatch.setattr(loop_of(engine)._scheduler._preemption, "preempt", watch)
        arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        finals: dict[int, OutputDelta] = {}
        with held(engine):
            engine.submit_batch(parse(list("wxyz"), max_new_tokens=40, ignore_eos=True), arrived.put)
            wait_until(lambda: not engine._preparation.open.waiting)
            ids = engine.submit_batch([replace(request, pooling="mean") for request in parse(prompts)], arrived.put)
        while len(finals) < 6:
            delta = arrived.get(timeout=60)
            if delta.finish_reason:
                finals[delta.request_id] = delta
        assert any(pooling and computed for pooling, computed in interrupted), interrupted
        for request_id, mean in zip(ids, expected, strict=True):
            torch.testing.assert_close(finals[request_id].pooled, mean, atol=1e-5, rtol=1e-4)


# --- watching --------------------------------------------------------------------------------------------------------


def test_stats_count_what_happened(vision_engine: AsyncEngine) -> None:
    worker = loop_of(vision_engine).embeddings.worker
    assert worker is not None
    worker._max_wait_s = 60.0  # all pictures are one call, however long they take to prepare
    before = vision_engine.stats()
    assert before.num_kv_blocks > 0 and before.num_used_kv_blocks == before.total_step_tokens == 0
    pictures = [make_picture(24 + 4 * seed, 40, 200 + seed) for seed in range(4)]
    requests = parse([("what is in the picture?", picture) for picture in pictures], max_new_tokens=3, ignore_eos=True)
    first = ask(vision_engine, requests)
    ask(vision_engine, requests)
    after = vision_engine.stats()
    assert (after.total_encoder_calls, after.total_encoder_items, after.encode_sizes) == (1, 4, ((4, 1),))
    assert (after.total_feature_hits, after.total_feature_misses, after.num_features) == (4, 4, 4)
    assert after.total_embedding_misses == after.num_embeddings == 4
    assert after.embedding_bytes > 0 and after.feature_bytes > 0
    num_prompt = sum(answer.input_token_len for answer in first)
    assert after.total_prefix_queried_tokens == 2 * num_prompt > after.total_prefix_hit_tokens > num_prompt // 2
    assert after.total_step_tokens == 2 * (num_prompt + 4 * 2) - after.total_prefix_hit_tokens
    assert sum(size * count for size, count in after.step_sizes) >= 2 * 4 * 3
    assert after.num_cached_kv_blocks > 0
    assert after.num_preparing == after.num_waiting == after.num_running == after.num_encode_queued == 0
    usage = first[0].usage
    assert usage is not None and (usage.num_images, usage.num_videos) == (1, 0)


def test_stats_may_be_asked_at_any_time(text_engine: AsyncEngine) -> None:
    is_done, seen, problems = threading.Event(), [], []

    def watch() -> None:
        try:
            while not is_done.is_set():
                seen.append(text_engine.stats())
        except Exception as error:
            problems.append(error)

    watchers = [threading.Thread(target=watch) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    ask(text_engine, parse([f"question {k}" for k in range(20)], max_new_tokens=20, ignore_eos=True))
    is_done.set()
    for watcher in watchers:
        watcher.join()
    assert not problems and any(stats.num_running for stats in seen)


def test_extreme_temperatures_and_penalties_stay_finite(text_engine: AsyncEngine) -> None:
    greedy = ask(text_engine, parse(["sing"], max_new_tokens=6, ignore_eos=True))[0]
    cold = ask(text_engine, parse(["sing"], max_new_tokens=6, ignore_eos=True, do_sample=True, temperature=1e-300))[0]
    assert cold.token_ids == greedy.token_ids
    hot = {"do_sample": True, "temperature": 1e6, "repetition_penalty": 0.01}
    assert len(ask(text_engine, parse(["sing"], max_new_tokens=6, ignore_eos=True, **hot))[0].token_ids) == 6
    with pytest.raises(ConfigError, match="repetition_penalty"):
        GenerationConfig(repetition_penalty=5e-324)


def test_session_len_is_what_the_cache_can_hold(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", block_size=4, num_gpu_blocks=10)
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config) as engine:
        assert engine.session_len == 40
        output = ask(engine, parse(["hi"], max_new_tokens=500, ignore_eos=True))[0]
    assert output.finish_reason == "length" and output.usage is not None
    assert output.usage.prompt_tokens + output.usage.completion_tokens == 40


# --- failure, abort, close -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("error", [MemoryError("too much"), RuntimeError("a bug")])
def test_failing_step_ends_the_row_at_fault_only(
    text_engine: AsyncEngine, tiny_checkpoint: Callable[[str], Path], error: Exception, is_ahead: bool
) -> None:
    class FailsOnLongPrompts(ModelRunner):
        def launch(self, plan: StepPlan, splices: Any) -> LaunchedStep:
            if any(self.rows[row.seq_id].num_prompt_tokens > 60 for row in plan.rows):
                raise error
            return super().launch(plan, splices)

    expected = ask(text_engine, parse(["short", "small"], max_new_tokens=6, ignore_eos=True))
    config = EngineConfig(device_type="cpu", block_size=16, async_scheduling=is_ahead)
    path, prompts = str(tiny_checkpoint("llama")), ["short", "long " * 20, "small"]
    with AsyncEngine(path, backend_config=config, core_parts=watched(FailsOnLongPrompts)) as engine:
        short, long, small = ask(engine, parse(prompts, max_new_tokens=6, ignore_eos=True))
    assert [short.token_ids, small.token_ids] == [output.token_ids for output in expected]
    assert isinstance(long.error, RequestError)
    assert long.error.code is (ErrorCode.OUT_OF_MEMORY if isinstance(error, MemoryError) else ErrorCode.INTERNAL)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_failing_steps_lose_nothing_between_device_and_host(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    """Steps of several rows fail half-way and are computed again row by row: their copies have been made, once."""
    path = str(tiny_checkpoint("llama"))
    options: dict[str, Any] = {"device_type": "cpu", "block_size": 4}
    requests = parse([f"{word} " * 6 for word in ("game", "frame", "the", "in")], max_new_tokens=12, ignore_eos=True)
    with AsyncEngine(path, backend_config=EngineConfig(**options)) as engine:
        expected = [output.token_ids for output in ask(engine, requests)]
    config = EngineConfig(**options, num_gpu_blocks=24, num_cpu_blocks=100, async_scheduling=is_ahead)
    plans: list[StepPlan] = []

    class Watched(ModelRunner):
        def launch(self, plan: StepPlan, splices: Any) -> LaunchedStep:
            plans.append(plan)
            return super().launch(plan, splices)

    with AsyncEngine(path, backend_config=config, core_parts=watched(Watched)) as engine:
        runner, failed = loop_of(engine)._runner, list[StepPlan]()
        forward = runner.decoder.forward

        def fail_with_several(*inputs: Any) -> Any:
            if len(plans[-1].rows) > 1 and len(plans) % 3 == 0:
                failed.append(plans[-1])
                raise RuntimeError("a bug")
            return forward(*inputs)

        monkeypatch.setattr(runner.decoder, "forward", fail_with_several)
        for _ in range(60):  # which steps fail depends on when the requests arrive
            assert [output.token_ids for output in ask(engine, requests)] == expected
            if any(plan.saves for plan in failed) and any(plan.loads for plan in failed):
                break
        else:
            pytest.fail("no step failed that saves, or none that loads")


def test_abort_ends_with_one_final_delta(vision_engine: AsyncEngine) -> None:
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    requests = parse(["a", ("b", make_picture(40, 30, 70)), "c"], max_new_tokens=1500, ignore_eos=True)
    ids = vision_engine.submit_batch(requests, arrived.put)
    vision_engine.abort(ids[1])  # most likely while it is prepared
    seen = [arrived.get(timeout=60)]
    while seen[-1].request_id != ids[0]:
        seen.append(arrived.get(timeout=60))
    for request_id in ids:
        vision_engine.abort(request_id)
        vision_engine.abort(request_id)
    check_all_free(vision_engine)
    wait_until(lambda: not vision_engine._preparation.open.waiting)
    while not arrived.empty():
        seen.append(arrived.get())
    finals = [(delta.request_id, delta.finish_reason) for delta in seen if delta.finish_reason]
    assert sorted(finals) == [(request_id, "abort") for request_id in ids]


def test_one_picture_in_many_requests_of_a_call_is_decoded_once(
    vision_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []

    decode = Picture.decode

    def count(picture: Picture) -> Any:
        decoded.append(picture.identity)
        return decode(picture)

    monkeypatch.setattr(Picture, "decode", count)
    first, second = make_picture(40, 30, 170), make_picture(40, 30, 171)
    prompts = [("a", first), ("b", second), ("c", first), ("d", [second, first])]
    outputs = ask(vision_engine, parse(prompts, max_new_tokens=5, ignore_eos=True))
    assert len(decoded) == 2 and {identity[0] for identity in decoded} == {id(first), id(second)}
    alone = [ask(vision_engine, parse([prompt], max_new_tokens=5, ignore_eos=True))[0] for prompt in prompts]
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]


def test_an_answer_that_nobody_reads_meanwhile_is_the_same_text(text_engine: AsyncEngine) -> None:
    """Its tokens become text at its end only: also when it is aborted, and when a stop word ends it."""
    request = parse(["tell me"], max_new_tokens=400, ignore_eos=True)[0]
    streamed = "".join(delta.text for delta in collect(text_engine, [request])[0])
    [[whole]] = collect(text_engine, [replace(request, streams=False)])
    assert whole.text == streamed and len(whole.token_ids) == 400
    word = streamed[20:23]
    config = replace(request.gen_config, stop_words=[word])
    [[stopped]] = collect(text_engine, [replace(request, streams=False, gen_config=config)])
    assert stopped.text == streamed[: streamed.index(word)] and stopped.finish_reason == "stop"
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    long = replace(request, streams=False, gen_config=replace(request.gen_config, max_new_tokens=1900))
    [request_id] = text_engine.submit_batch([long], arrived.put)
    wait_until(lambda: any(live.new_token_ids for live in list(loop_of(text_engine)._live.values())))
    text_engine.abort(request_id)
    aborted = arrived.get(timeout=60)
    assert aborted.finish_reason == "abort" and aborted.text and len(aborted.token_ids) > 0


def test_receiver_that_fails_ends_its_request_only(text_engine: AsyncEngine) -> None:
    def fail(delta: OutputDelta) -> None:
        raise ValueError("the receiver is gone")

    text_engine.submit_batch(parse(["a"], max_new_tokens=500, ignore_eos=True), fail)
    assert ask(text_engine, parse(["b"], max_new_tokens=3, ignore_eos=True))[0].finish_reason == "length"
    check_all_free(text_engine)


def test_close_ends_what_runs(tiny_checkpoint: Callable[[str], Path]) -> None:
    engine = AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=CPU)
    threads = threading.active_count()
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    ids = engine.submit_batch(parse(["a", "b"], max_new_tokens=1900, ignore_eos=True), arrived.put)
    first = arrived.get(timeout=60)
    assert first.finish_reason is None
    engine.close()
    engine.close()
    assert threading.active_count() < threads
    finals = {}
    while not arrived.empty():
        delta = arrived.get()
        if delta.finish_reason:
            assert delta.request_id not in finals
            finals[delta.request_id] = delta
    assert set(finals) == set(ids)
    for final in finals.values():
        assert isinstance(final.error, RequestError) and final.error.code is ErrorCode.CLOSED
    with pytest.raises(RequestError, match="closed"):
        engine.submit_batch(parse(["a"]), arrived.put)


async def test_generate_streams_and_stops_when_left(text_engine: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=6, ignore_eos=True)
    streamed = [delta async for delta in text_engine.generate("hello", gen_config=config)]
    whole = [delta async for delta in text_engine.generate("hello", gen_config=config, stream_response=False)]
    assert len(whole) == 1 and whole[0].text == "".join(delta.text for delta in streamed)
    assert {answer.index for answer in (*streamed, *whole)} == {0}
    both = await asyncio.gather(*(_first(text_engine, name) for name in ("x", "y")))
    assert all(piece.finish_reason is None for piece in both)
    check_all_free(text_engine)


async def _first(engine: AsyncEngine, prompt: str) -> Response:
    deltas = engine.generate(prompt, gen_config=GenerationConfig(max_new_tokens=1500, ignore_eos=True))
    async for delta in deltas:
        await deltas.aclose()
        return delta
    raise AssertionError


def test_a_start_that_fails_leaves_no_process(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Where the frontend fails while the engine process loads, that process is ended, not left behind."""
    pytest.importorskip("msgspec")
    pytest.importorskip("zmq")

    def fail() -> None:
        wait_until(lambda: len(find_children(os.getpid(), ENGINE_PROCESS)) == 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        AsyncEngine(str(tiny_checkpoint("llama")), backend_config=replace(CPU, engine_process=True), while_loading=fail)
    wait_until(lambda: not find_children(os.getpid(), ENGINE_PROCESS))


def test_settings_of_another_kind_are_refused_by_name(tiny_checkpoint: Callable[[str], Path]) -> None:
    for name in ("backend_config", "vision_config", "chat_template_config", "media_limits"):
        settings: dict[str, Any] = {name: 3}
        with pytest.raises(TypeError, match=f"{name} must be"):
            AsyncEngine(str(tiny_checkpoint("llama")), **settings)


def test_defaults_and_a_recording(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Without a configuration it has that of the device that is here."""
    path = tiny_checkpoint("llama")
    if not torch.cuda.is_available():
        with AsyncEngine(str(path)) as engine:
            assert engine.config == EngineConfig() and ask(engine, parse(["hi"], max_new_tokens=2))[0].error is None
    file = tmp_path / "record.jsonl"
    with AsyncEngine(str(path), backend_config=replace(CPU, record=str(file))) as engine:
        [answer] = ask(engine, parse(["hello"], max_new_tokens=3, ignore_eos=True))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["answer"] for line in lines] == [list(answer.token_ids)]


def test_weights_from_a_folder_and_from_memory(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("llama")
    other = copy_with_other_weights(path, tmp_path / "other")
    requests = parse(["the frame"], max_new_tokens=6, ignore_eos=True)
    with AsyncEngine(str(other), backend_config=CPU) as engine:
        [theirs] = ask(engine, requests)
    with AsyncEngine(str(path), backend_config=CPU) as engine:
        [ours] = ask(engine, requests)
        engine.update_weights(read_weights(other))
        assert ask(engine, requests)[0].token_ids == theirs.token_ids != ours.token_ids
        engine.update_weights(path)
        assert ask(engine, requests)[0].token_ids == ours.token_ids


async def test_stop_session_aborts(text_engine: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=1500, ignore_eos=True)
    deltas = []
    async for delta in text_engine.generate("x", session_id=5, gen_config=config):
        deltas.append(delta)
        text_engine.stop_session(5)
    assert deltas[-1].finish_reason == "abort"


def test_wrong_device_and_model_are_named(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="tpu"):
        AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=EngineConfig(device_type="tpu"))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl"])
def test_absurd_sizes_are_refused_by_arithmetic(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Options that ask for more pixels than there is memory cost neither memory nor time."""
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=CPU) as engine:
        wanted: list[dict[str, int]] = [{"max_dynamic_patch": 10**9}, {"max_dynamic_patch": 10**400}]
        if name == "qwen2_5_vl":
            wanted = [{"min_pixels": n, "max_pixels": n} for n in (10**9, 2**31, 10**12, 10**400)]
        for options in wanted:
            picture = {"type": "image_url", "image_url": {"url": make_picture(20, 20, 1), **options}}
            started = time.process_time()
            output = ask(engine, parse([[{"role": "user", "content": [picture]}]], max_new_tokens=2))[0]
            assert isinstance(output.error, RequestError), options
            assert output.error.code is not ErrorCode.INTERNAL, output.error
            assert time.process_time() - started < 5, options


# --- long texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", (False, True))
def test_the_factors_of_a_text_do_not_depend_on_what_it_may_become(
    is_ahead: bool, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Prompts of 20 tokens, short factors up to 40: alone, together, streamed or not, an answer of 8 tokens is the
    beginning of one of 64, which crosses the border; those that begin alike share blocks of either kind."""
    config = replace(CPU, block_size=4, async_scheduling=is_ahead)
    with AsyncEngine(str(tiny_checkpoint("phi3_longrope")), backend_config=config) as engine:
        [longest] = ask(engine, parse(["Frame"], max_new_tokens=64, ignore_eos=True))
        lengths = (8, 20, 21, 22, 40, 64)
        configs = [GenerationConfig(max_new_tokens=count, ignore_eos=True) for count in lengths]
        requests = [replace(r, streams=bool(i % 2)) for i, r in enumerate(parse(["Frame"] * len(lengths), *configs))]
        for _ in range(2):
            for count, output in zip(lengths, ask(engine, requests), strict=True):
                assert list(output.token_ids) == list(longest.token_ids)[:count], count
        stats = engine.stats()
        assert stats.total_preemptions == 0
        check_all_free(engine)
