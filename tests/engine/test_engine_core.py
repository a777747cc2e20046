"""The two halves of the engine: the core alone, and a frontend that is late, or is asked for features again."""

from __future__ import annotations

import io
import pickle
import queue
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, collect, loop_of, make_picture, parse
from differential import Question, Setup, World
from faults import Faults
from llm.backbones import Backbone, make_backbone

from seesay.config import EngineConfig, VisionConfig
from seesay.encoders.store import Lookup
from seesay.engine.commands import ResetCaches
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.token_messages import Features, TokenOutput, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import FinishReason, MultimodalInput
from seesay.vl.media.media_decoder import MediaDecoder
from seesay.vl.media.media_items import OpenItem

TEXT = Question(4, (), 2, SamplingParams(max_new_tokens=5))
PICTURE = Question(0, (1,), 3, SamplingParams(max_new_tokens=4))


class Recorder(World):
    """A core whose calls of its listener are kept."""

    def __init__(self, backbone: Backbone, **options: Any) -> None:
        self.calls: list[list[TokenOutput]] = []
        self.wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.fails_once = False
        super().__init__(backbone, Setup(**options), Faults())

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        if self.fails_once:
            self.fails_once = False
            raise ValueError("not now")
        self.calls.append(list(outputs))
        super().on_outputs(outputs)

    def on_encoding(self, item_hash: bytes) -> None:
        pass

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        self.wanted.put((request_id, item_index))

    def ask_without_arrays(self, request_id: int, question: Question) -> Features:
        """Ask a question whose picture comes without arrays. Returns the features that it should have had."""
        prompt = question.make_prompt()
        bare = tuple(replace(item, features={}, has_arrays=False) for item in prompt.items)
        prompt = replace(prompt, items=bare)
        self.loop.submit(
            [TokenRequest(request_id=request_id, prompt=prompt, params=question.params, defers_tokens=True)]
        )
        return question.make_prompt().items[0].features


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def make_core(backbone: Backbone) -> Iterator[Callable[..., Recorder]]:
    made: list[Recorder] = []

    def make(**options: Any) -> Recorder:
        made.append(Recorder(backbone, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


# --- the core alone --------------------------------------------------------------------------------------------------


def test_tokens_in_tokens_out(make_core: Callable[..., Recorder]) -> None:
    world = make_core()
    [streamed] = world.ask([(TEXT, 9)], random.Random(0)).values()
    final = world.take_final(world.submit(replace(TEXT, params=replace(TEXT.params, logprobs=2))))
    assert len(streamed.token_ids) == 5 and list(final.token_ids) == streamed.token_ids
    assert final.finish_reason == "length" and final.error is None and final.report is not None
    assert final.logprobs is not None and len(final.logprobs) == 5
    assert all(token_id in entry for token_id, entry in zip(final.token_ids, final.logprobs))
    assert final.report.num_cached_tokens == 4, "of the same prompt, one block of four tokens"
    assert final.report.computing_at_s is not None and final.report.first_token_at_s is not None
    assert final.report.first_token_at_s >= final.report.computing_at_s
    facts = world.loop.facts
    assert (facts.device, facts.dtype, facts.max_batch_size, facts.takes_media) == ("cpu", "float32", 8, True)
    world.check_idle()


def resend(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))  # noqa: S301


def test_messages_can_be_serialized(make_core: Callable[..., Recorder]) -> None:
    options: dict[str, Any] = {"output_logits": "all", "output_last_hidden_state": "generation"}
    params = replace(PICTURE.params, prompt_logprobs=2, **options)
    prompt = PICTURE.make_prompt()
    request = TokenRequest(request_id=7, prompt=prompt, params=params, owner="a", defers_tokens=True)
    world = make_core()
    world.loop.submit([resend(request)])
    final = world.take_final(7)
    again = resend(final)
    assert again.report.encoded_items == (0,) and again.report.encode_s > 0
    assert again.report.logits.dtype == again.report.hidden_states.dtype == np.float32
    assert len(again.report.logits) == len(prompt.token_ids) + 3 and len(again.report.hidden_states) == 4
    assert again.prompt_logprobs.values.shape == (len(prompt.token_ids) - 1, 3)
    assert final.report is not None
    np.testing.assert_array_equal(again.report.logits, final.report.logits)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_outputs_of_a_step_come_in_one_call(make_core: Callable[..., Recorder], is_ahead: bool) -> None:
    world = make_core(is_ahead=is_ahead)
    is_ready = threading.Event()
    world.loop._inbox.put(lambda: assert_true(is_ready.wait(60)))
    ids = [world.submit(replace(TEXT, tail=n), streams=True) for n in range(4)]
    quiet = world.submit(replace(TEXT, tail=4), streams=False)
    is_ready.set()
    num_left = 5
    while num_left:
        num_left -= world.take_delta().finish_reason is not None
    per_call = [sorted(output.request_id for output in outputs) for outputs in world.calls]
    assert all(len(set(found)) == len(found) for found in per_call), "a step has one output of a request"
    # Equal beginnings are computed once, so the first steps may have one request alone.
    assert per_call.count(ids) + per_call.count([*ids, quiet]) >= 3, per_call
    assert sum(map(len, per_call)) == 4 * 5 + 1, "the quiet one comes at its end"


def assert_true(value: bool) -> None:
    assert value


def test_a_prompt_that_does_not_fit_together_ends_its_request_only(make_core: Callable[..., Recorder]) -> None:
    world = make_core()
    broken = MultimodalInput(token_ids=np.arange(3), positions=np.arange(2), next_position=2)
    world.loop.submit([TokenRequest(request_id=1, prompt=broken, params=TEXT.params)])
    final = world.take_final(1)
    assert final.finish_reason == "error" and final.error is not None and final.error.code is ErrorCode.INTERNAL
    assert world.take_final(world.submit(TEXT) or 1).finish_reason == "length"


def test_whoever_takes_outputs_may_fail(make_core: Callable[..., Recorder]) -> None:
    world = make_core()
    world.fails_once = True
    final = world.take_final(world.submit(replace(TEXT, params=SamplingParams(max_new_tokens=50)), streams=True))
    assert final.finish_reason == "abort"
    world.check_idle()


# --- features that are asked for -------------------------------------------------------------------------------------


def test_features_are_asked_for_when_the_embedding_is_gone(make_core: Callable[..., Recorder]) -> None:
    world = make_core(caching=False)
    [expected] = world.ask([(PICTURE, None)], random.Random(0)).values()
    world.ask_without_arrays(2, PICTURE)
    here = world.take_final(2)
    assert list(here.token_ids) == expected.token_ids and world.wanted.empty()
    assert here.report is not None and here.report.encoded_items == ()
    world.loop.run_command(ResetCaches())
    features = world.ask_without_arrays(3, PICTURE)
    assert world.wanted.get(timeout=60) == (3, 0)
    world.settle()
    assert world.loop.embeddings.store.find(PICTURE.make_prompt().items[0].hash) is Lookup.MISSING
    world.loop.give_features(3, 0, features)
    gone = world.take_final(3)
    assert list(gone.token_ids) == expected.token_ids
    assert gone.report is not None and gone.report.encoded_items == (0,)
    world.check_idle()


@pytest.mark.parametrize("end", ["abort", "error"])
def test_another_is_asked_when_the_first_ends(make_core: Callable[..., Recorder], end: str) -> None:
    """Two wait for one embedding: one is asked at a time, and the other's answer does not depend on it."""
    world = make_core(caching=False)
    [expected] = world.ask([(PICTURE, None)], random.Random(0)).values()
    world.loop.run_command(ResetCaches())
    world.ask_without_arrays(2, PICTURE)
    assert world.wanted.get(timeout=60) == (2, 0)
    features = world.ask_without_arrays(3, PICTURE)
    world.settle()
    assert world.wanted.empty()
    if end == "abort":
        world.loop.abort([2])
    else:
        world.loop.give_features(2, 0, RequestError(ErrorCode.INVALID_MEDIA, "the file is gone"))
    first = world.take_final(2)
    assert first.finish_reason == end and (end == "abort") == (first.error is None)
    assert world.wanted.get(timeout=60) == (3, 0)
    world.loop.give_features(2, 0, features)  # too late, for a request that is over
    world.loop.give_features(3, 0, features)
    assert list(world.take_final(3).token_ids) == expected.token_ids
    world.check_idle()


def test_features_that_come_with_another_request_are_enough(make_core: Callable[..., Recorder]) -> None:
    world = make_core(caching=False)
    features = world.ask_without_arrays(10, PICTURE)
    assert world.wanted.get(timeout=60) == (10, 0)
    world.submit(PICTURE)
    finals = [world.take_delta() for _ in range(2)]
    assert finals[0].token_ids == finals[1].token_ids and finals[0].finish_reason == "length"
    world.loop.give_features(10, 0, features)
    world.check_idle()
    assert world.engine.tower.sizes == [1]


def encode_png(seed: int) -> bytes:
    file = io.BytesIO()
    make_picture(40, 60, seed).save(file, "PNG")
    return file.getvalue()


def test_the_front_decodes_again_what_was_evicted(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding is said to be there when a request is prepared, and is gone when it is computed."""
    config = EngineConfig(device_type="cpu", block_size=16, enable_prefix_caching=False)
    vision = VisionConfig(embedding_cache_bytes=0, feature_cache_bytes=0)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config, vision_config=vision) as engine:
        requests = parse([("what?", encode_png(n)) for n in range(3)], max_new_tokens=6, ignore_eos=True)
        expected = [answer.token_ids for answer in ask(engine, requests)]
        decoder = engine._preparer._media._decoder
        monkeypatch.setattr(decoder, "_is_encoded", lambda _key: True)
        wanted, want = [], engine._delivery.on_features_wanted

        def note(*which: Any) -> None:
            wanted.append(which)
            want(*which)

        monkeypatch.setattr(loop_of(engine).embeddings, "_on_features_wanted", note)
        answers = ask(engine, requests)
        assert [answer.token_ids for answer in answers] == expected and len(wanted) == 3
        assert not any(media.is_cached for answer in answers for media in answer.media)
        monkeypatch.setattr(decoder, "_decode", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        for answer in ask(engine, requests):
            assert answer.finish_reason == "error" and "the disk is gone" in str(answer.error)


@pytest.mark.parametrize("has_process", [False, True])
def test_arrays_are_dropped_once_their_item_is_encoding(
    has_process: bool, tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the core nor the frontend's ledger holds them while an answer goes on, and no room stays taken. Preempted
    requests whose embedding is gone have them made again: the answers are the same."""
    config = EngineConfig(device_type="cpu", block_size=16, enable_prefix_caching=False, engine_process=has_process)
    vision = VisionConfig(embedding_cache_bytes=0, feature_cache_bytes=0)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=config, vision_config=vision) as engine:
        requests = parse([("what?", encode_png(n)) for n in range(3)], max_new_tokens=8, ignore_eos=True)
        sizes: list[int] = []
        hold = engine._media_room.hold

        def note(request_id: int, held: Mapping[bytes, int]) -> None:
            sizes.append(sum(held.values()))
            hold(request_id, held)

        monkeypatch.setattr(engine._media_room, "hold", note)
        left: list[int] = []

        def look(outputs: Sequence[TokenOutput], take: Any = engine._delivery.on_outputs) -> None:
            left.append(_count_array_bytes(engine))
            take(outputs)

        monkeypatch.setattr(engine._delivery, "on_outputs", look)
        answers = ask(engine, requests)
        assert len(sizes) == 3 and min(sizes) > 0
        assert left and not any(left), "arrays are held while tokens come"
        assert engine._media_room.used_bytes == 0 and not engine._media_room._held
    with AsyncEngine(path, backend_config=replace(config, engine_process=False), vision_config=vision) as engine:
        monkeypatch.setattr(MediaDecoder, "_load_features", lambda *_: pytest.fail("nothing is to be made again"))
        assert [answer.token_ids for answer in ask(engine, requests)] == [answer.token_ids for answer in answers]


def _count_array_bytes(engine: AsyncEngine) -> int:
    """Bytes of the arrays of media that the live requests hold, in the core or the ledger of its process."""
    if isinstance(engine.core, ProcessCore):
        items = [item for entry in engine.core._ledger._entries.values() for item in entry.request.prompt.items]
    else:
        items = [item for request in loop_of(engine)._live.values() for item in request.sequence.items]
    return sum(item.num_array_bytes for item in items)


def test_a_preempted_request_has_its_arrays_made_again(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks for two prompts, not for their answers: one is preempted, and its embedding is gone."""
    vision = VisionConfig(embedding_cache_bytes=0, feature_cache_bytes=0)
    requests = parse([("what?", encode_png(n)) for n in range(2)], max_new_tokens=40, ignore_eos=True)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    plain = EngineConfig(device_type="cpu", block_size=16, enable_prefix_caching=False)
    with AsyncEngine(path, backend_config=plain, vision_config=vision) as engine:
        expected = ask(engine, requests)
    num_tokens = max(answer.usage.prompt_tokens for answer in expected if answer.usage is not None)
    num_blocks = 2 * -(-(num_tokens + 1) // 16) + 1
    with AsyncEngine(path, backend_config=replace(plain, num_gpu_blocks=num_blocks), vision_config=vision) as engine:
        loads: list[OpenItem] = []
        load = MediaDecoder._load_features

        def note(decoder: MediaDecoder, item: OpenItem) -> Features:
            loads.append(item)
            return load(decoder, item)

        monkeypatch.setattr(MediaDecoder, "_load_features", note)
        answers = ask(engine, requests)
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
        assert engine.stats().total_preemptions and loads
        assert engine._media_room.used_bytes == 0


# --- a frontend that is late ------------------------------------------------------------------------------------------


class LateFinishes:
    """Lets the core go on for some outputs after the frontend has ended a request."""

    def __init__(self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, num_outputs: int) -> None:
        self._num_outputs = num_outputs
        self._held: dict[int, int] = {}  # request id → outputs until the core hears of its end
        self.num_late = 0
        self._take, self._finish = engine._delivery.on_outputs, engine.core.finish
        monkeypatch.setattr(engine.core, "finish", self.finish)
        monkeypatch.setattr(engine._delivery, "on_outputs", self.on_outputs)

    def finish(self, request_id: int, reason: FinishReason) -> None:
        self._held[request_id] = self._num_outputs

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            if (left := self._held.get(output.request_id)) is not None:
                self.num_late += len(output.token_ids)
                self._held[output.request_id] = left - 1
                if left == 1:
                    self._finish(output.request_id, "stop")
        self._take(outputs)


@pytest.mark.parametrize("num_late", [0, 1, 5])
@pytest.mark.parametrize("streams", [False, True])
def test_tokens_behind_a_stop_word_are_nobodys(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, num_late: int, streams: bool
) -> None:
    """The core is a step ahead, or more, when the frontend finds the word: text, ids, logits, logprobs, usage and
    reason are those of the word."""
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "logprobs": 1, "output_logits": "all"}
    config = EngineConfig(device_type="cpu", block_size=16, async_scheduling=True)
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config) as engine:
        [free] = ask(engine, parse(["tell me"], **options))
        word = free.text[12:15]
        stops = {**options, "stop_words": [word]}
        expected_text = free.text[: free.text.index(word)]
        late = LateFinishes(engine, monkeypatch, num_late) if num_late else None
        [deltas] = collect(engine, [replace(parse(["tell me"], **stops)[0], streams=streams)])
        assert "".join(delta.text for delta in deltas) == expected_text
        assert len(deltas) > 1 if streams else len(deltas) == 1
        final = deltas[-1]
        assert (final.finish_reason, final.stop_reason, final.error) == ("stop", word, None)
        ids = [token_id for delta in deltas for token_id in delta.token_ids]
        assert ids == free.token_ids[: len(ids)] and 0 < len(ids) < 40
        assert final.usage is not None and final.usage.completion_tokens == len(ids)
        assert sum(len(delta.logprobs or ()) for delta in deltas) == len(ids)
        assert len(final.logits) == final.usage.prompt_tokens - 1 + len(ids)
        assert late is None or late.num_late >= num_late, "the core went on meanwhile"


def test_an_error_behind_a_stop_word_is_nobodys(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config) as engine:
        [free] = ask(engine, parse(["tell me"], max_new_tokens=40, ignore_eos=True))
        word = free.text[12:15]
        fail = RequestError(ErrorCode.INTERNAL, "a step failed")
        loop = loop_of(engine)
        monkeypatch.setattr(
            loop, "finish", lambda request_id, _: loop._inbox.put(lambda: loop._ends.fail(request_id, fail))
        )
        [answer] = ask(engine, parse(["tell me"], max_new_tokens=40, ignore_eos=True, stop_words=[word]))
        assert answer.finish_reason == "stop" and answer.text == free.text[: free.text.index(word)]
