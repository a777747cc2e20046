"""From requests to prompts and sampling options, on tiny random checkpoints."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from asking import ask, make_message, make_picture, parse
from demo_model import MODEL, TOKENIZER, make_preparer
from trial_script import ScriptedTrials

from seesay.config import ChatTemplateConfig, EngineConfig, GenerationConfig
from seesay.engine.commands import LoadedAdapter
from seesay.engine.front import preparer as preparer_module
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.preparer import PreparedRequest, RequestPreparer
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ErrorCode, RequestError
from seesay.templates import JinjaTemplate
from seesay.values import (
    GenerationRequest,
    MediaItem,
    MediaPart,
    MediaPlace,
    Message,
    Modality,
    MultimodalInput,
    OutputDelta,
    TextPart,
)
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN

CPU = EngineConfig(device_type="cpu", block_size=16)
SMALL = {"min_pixels": 28 * 28}
PLACE = MediaPlace(source="messages[0].content[1]")
REGEX = {"type": "regex_schema", "regex_schema": "(yes|no)"}
IDS = GenerationRequest(prompt=(1, 2, 3), gen_config=GenerationConfig(max_new_tokens=9))
TALK = replace(IDS, prompt=(Message(role="user", parts=(TextPart(text="hi"),)),))


def make_file(height: int, width: int, seed: int) -> bytes:
    file = io.BytesIO()
    make_picture(height, width, seed).save(file, "PNG")
    return file.getvalue()


def make_part(*, place: MediaPlace | None = None) -> MediaPart:
    return MediaPart(modality=Modality.IMAGE, source=make_file(56, 84, 1), options=SMALL, place=place)


FRAMES = MediaPart(
    modality=Modality.VIDEO, source=[make_picture(56, 56, seed) for seed in range(4)], options={"fps": 2.0, **SMALL}
)
SEEN = replace(IDS, prompt=f"a{IMAGE_TOKEN}", media=(make_part(place=PLACE),))
WATCHED = replace(IDS, prompt=f"a{VIDEO_TOKEN}{IMAGE_TOKEN}", media=(FRAMES, make_part()))


class Known:
    """What a core knows: `adapters` by their names, and the hashes of items that are `encoded`."""

    def __init__(self) -> None:
        self.adapters: dict[str, LoadedAdapter] = {}
        self.encoded: set[bytes] = set()

    def add(self, name: str, number: int, tower_key: str = "") -> None:
        self.adapters[name] = LoadedAdapter(name=name, id=number, folder="", tower_key=tower_key)

    def find(self, name: str) -> LoadedAdapter | None:
        assert isinstance(name, str)
        return self.adapters.get(name)


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def preparer(known: Known) -> Iterator[RequestPreparer]:
    """Its answers may begin with thoughts."""
    texts = TextFrontend(TOKENIZER, JinjaTemplate("own", "{{ messages[0].content }}"), reasoning_parser="qwen3")
    preparer = make_preparer(
        texts,
        grammars=ScriptedTrials().as_trials,
        find_adapter=known.find,
        is_encoded=lambda item_hash: item_hash in known.encoded,
    )
    yield preparer
    preparer.close()


def prepare(
    preparer: RequestPreparer, *requests: GenerationRequest, prompts: SharedPrompts | None = None
) -> dict[int, PreparedRequest | RequestError]:
    """Prepare requests, whose ids count up from 1."""
    return preparer.prepare(dict(enumerate(requests, start=1)), pass_on, 5.0, prompts or SharedPrompts(requests))


def pass_on(_: OutputDelta) -> None:
    """A receiver."""


def prepare_one(preparer: RequestPreparer, request: GenerationRequest = IDS, **options: Any) -> PreparedRequest:
    found = prepare(preparer, replace(request, **options))[1]
    assert not isinstance(found, RequestError), found
    return found


def find_error(preparer: RequestPreparer, request: GenerationRequest = IDS, **options: Any) -> RequestError:
    found = prepare(preparer, replace(request, **options))[1]
    assert isinstance(found, RequestError)
    return found


# --- on the built-in checkpoint, without a core -----------------------------------------------------------------------


def test_a_request_for_the_core_and_its_answer(preparer: RequestPreparer) -> None:
    asked: dict[str, Any] = {"owner": "me", "priority": 4, "cache_salt": "é", "streams": False}
    token_request, answer = prepare_one(preparer, **asked)
    assert token_request.prompt.token_ids.tolist() == [1, 2, 3] and token_request.params.max_new_tokens == 9
    assert (token_request.request_id, token_request.owner, token_request.priority) == (1, "me", 4)
    assert (token_request.cache_salt, token_request.adapter_id) == ("é".encode(), 0)
    assert (token_request.is_streamed, token_request.defers_tokens) == (False, True)
    assert (token_request.grammar, token_request.thought, token_request.group_id) == (None, None, None)
    assert (answer.request_id, answer.on_output, answer.params) == (1, pass_on, token_request.params)
    assert (answer.streams, answer.keeps_stop, answer.times.received_at) == (False, False, 5.0)
    assert answer.prompt_usage.prompt_tokens == 3 and answer.media == () and answer.thought is None
    config = GenerationConfig(include_stop_str_in_output=True, stop_words=["x"])
    token_request, answer = prepare_one(preparer, gen_config=config)
    assert (token_request.is_streamed, token_request.defers_tokens) == (True, False)
    assert answer.streams and answer.keeps_stop and [*answer.detokenizer.stop_words] == ["x"]


def test_requests_for_one_prompt_are_a_group(preparer: RequestPreparer) -> None:
    for keeps in (True, False):
        requests = [IDS, replace(IDS, priority=2)]
        found = prepare(preparer, *requests, prompts=SharedPrompts(requests, keeps_blocks=keeps))
        first, second = (found[number] for number in (1, 2))
        assert not isinstance(first, RequestError) and not isinstance(second, RequestError)
        assert first[0].prompt is second[0].prompt
        assert [each.group_id for each, _ in (first, second)] == [1, 1]
        assert [each.keeps_blocks for each, _ in (first, second)] == [keeps, keeps]


def test_wrong_requests_leave_others_of_their_prompt_alone(preparer: RequestPreparer) -> None:
    wrong = GenerationConfig(bad_token_ids=[MODEL.vocab_size])
    requests = [replace(IDS, priority=1 << 64), replace(IDS, gen_config=wrong), replace(IDS, max_length=3), IDS, TALK]
    found = prepare(preparer, *requests[:4], IDS)
    errors = {number: each for number, each in found.items() if isinstance(each, RequestError)}
    assert {number: each.param for number, each in errors.items()} == {
        1: "priority",
        2: "bad_token_ids",
        3: "max_length",
    }
    assert {*found} == {1, 2, 3, 4, 5}
    assert {*prepare(preparer, *requests[:2])} == {1, 2}, "no prompt is built"


def test_a_prompt_that_cannot_be_built_ends_all_its_requests(preparer: RequestPreparer) -> None:
    wrong = replace(IDS, prompt=(1, -5))
    found = prepare(preparer, replace(wrong, priority=1 << 64), wrong, wrong)
    assert [getattr(found[number], "param", "") for number in (1, 2, 3)] == ["priority", "input_ids", "input_ids"]


class Odd(SharedPrompts):
    """Fails when a group is asked for."""

    def __init__(self, error: BaseException) -> None:
        super().__init__([IDS])
        self._error = error

    def group_of(self, request_id: int, request: GenerationRequest) -> int | None:
        raise self._error


@pytest.mark.parametrize("place", ["options", "prompt", "answer"])
def test_our_own_faults_end_a_request_and_ctrl_c_ends_all(
    preparer: RequestPreparer, known: Known, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail_with(error: BaseException) -> SharedPrompts:
        def fail(*_: object, **__: object) -> Any:
            raise error

        if place == "options":
            monkeypatch.setattr(preparer.answers, "read", fail)
        elif place == "prompt":
            monkeypatch.setattr(preparer.prompts, "build", fail)
        return Odd(error) if place == "answer" else SharedPrompts([IDS])

    found = prepare(preparer, IDS, prompts=fail_with(MemoryError()))[1]
    assert isinstance(found, RequestError) and found.code in (ErrorCode.INTERNAL, ErrorCode.OUT_OF_MEMORY)
    with pytest.raises(KeyboardInterrupt):
        prepare(preparer, IDS, prompts=fail_with(KeyboardInterrupt()))


def test_tokens_that_follow_a_prompt(preparer: RequestPreparer) -> None:
    token_request, answer = prepare_one(preparer, continuation=(8, 9))
    assert token_request.prompt.token_ids.tolist() == [1, 2, 3, 8, 9]
    assert token_request.prompt.num_answer_tokens == 2 and answer.prompt_usage.prompt_tokens == 5


def test_prompt_and_answer_have_a_length_together(preparer: RequestPreparer) -> None:
    for max_length, expected in ((4, 1), (11, 8), (12, 9), (13, 9)):
        token_request, answer = prepare_one(preparer, max_length=max_length)
        assert token_request.params.max_new_tokens == answer.params.max_new_tokens == expected
    assert prepare_one(preparer, max_length=6, continuation=(8,))[0].params.max_new_tokens == 2
    error = find_error(preparer, max_length=3)
    assert (error.code, error.param) == (ErrorCode.CONTEXT_TOO_LONG, "max_length")
    assert "the prompt alone has 3" in str(error)


def test_vectors_of_tokens_are_bounded(preparer: RequestPreparer, monkeypatch: pytest.MonkeyPatch) -> None:
    size = MODEL.hidden_size
    monkeypatch.setattr("seesay.engine.front.embedding.MAX_NUMBERS", 3 * size)
    longer = replace(IDS, prompt=(1, 2, 3, 4))
    assert prepare_one(preparer, pooling="tokens")[0].params.pooling == "tokens"
    assert prepare_one(preparer, longer, pooling="last")[0].params.pooling == "last"
    assert f"{size} numbers for each of the 4 tokens" in str(find_error(preparer, longer, pooling="tokens"))


@pytest.mark.parametrize(
    ("options", "follows", "limits"),
    [
        ({}, True, False), ({"response_format": REGEX}, True, True), ({"max_thinking_tokens": 3}, True, True),
        ({"response_format": REGEX, "max_thinking_tokens": 3}, True, True),
    ],
)  # fmt: skip
def test_the_core_knows_of_thoughts_that_are_limited_or_come_before_a_grammar(
    preparer: RequestPreparer, options: dict[str, Any], follows: bool, limits: bool
) -> None:
    config = GenerationConfig(**options)
    token_request, answer = prepare_one(preparer, TALK, gen_config=config)
    assert (answer.thought is not None) is follows and (token_request.thought is not None) is limits
    assert (token_request.grammar is not None) is ("response_format" in options)
    if token_request.thought is not None and answer.thought is not None:
        assert token_request.thought is answer.thought.rule
        assert token_request.thought.max_tokens == options.get("max_thinking_tokens")
    assert prepare_one(preparer, TALK, wants_answer=False, gen_config=config)[1].thought is None


def test_an_answer_that_goes_on_begins_no_thought(preparer: RequestPreparer) -> None:
    token_request, answer = prepare_one(preparer, TALK, continuation=(5,))
    assert answer.thought is None and token_request.thought is None


def test_tokens_of_a_thought_are_read_as_the_tokenizer_spells_them(preparer: RequestPreparer) -> None:
    _, answer = prepare_one(preparer, TALK)
    assert answer.thought is not None
    token_ids = TOKENIZER.encode("<think>ab</think>")
    answer.thought.follow([*token_ids, 5])
    assert answer.thought.is_over and answer.thought.stop == len(token_ids)


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_an_adapter_is_named_and_loaded(preparer: RequestPreparer, known: Known) -> None:
    known.add("mine", 7, "tower")
    error = find_error(preparer, adapter_name="other")
    assert error.param == "adapter_name" and "adapter_name='other' is not loaded" in str(error)
    assert prepare_one(preparer, adapter_name="mine")[0].adapter_id == 7
    own, plain = (prepare_one(preparer, SEEN, adapter_name=name)[0].prompt.items[0] for name in ("mine", None))
    assert own.hash != plain.hash, "it changes the tower"


def test_media_have_adapters_of_the_family(
    preparer: RequestPreparer, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.add("see", 7)
    assert prepare_one(preparer, SEEN)[0].adapter_id == 0
    adapters = {Modality.IMAGE: "see", Modality.VIDEO: "watch"}
    monkeypatch.setattr(preparer, "_media_adapters", adapters)
    known.add("watch", 8)
    # A set of modalities has no order.
    monkeypatch.setattr(preparer_module, "modalities_of", lambda request: [part.modality for part in request.media])
    for request, expected in ((IDS, 0), (SEEN, 7), (WATCHED, 7), (replace(SEEN, adapter_name="watch"), 8)):
        assert prepare_one(preparer, request)[0].adapter_id == expected
    del known.adapters["see"]
    assert prepare_one(preparer, SEEN)[0].adapter_id == 0 and prepare_one(preparer, WATCHED)[0].adapter_id == 8
    del adapters[Modality.IMAGE]
    assert prepare_one(preparer, SEEN)[0].adapter_id == 0


# --- media ------------------------------------------------------------------------------------------------------------


def test_how_media_are_seen(preparer: RequestPreparer) -> None:
    _, answer = prepare_one(preparer, WATCHED)
    video, picture = answer.media
    assert (video.modality, video.num_frames, video.height, video.width) == (Modality.VIDEO, 4, 56, 56)
    assert (video.timestamps_s, video.resized_height, video.resized_width) == ((0.0, 0.5, 1.0, 1.5), 56, 56)
    assert (picture.modality, picture.num_frames, picture.height, picture.width) == (Modality.IMAGE, 1, 56, 84)
    assert (picture.resized_height, picture.resized_width, picture.num_tokens, picture.num_patches) == (56, 84, 6, 24)
    assert (picture.is_cached, picture.coordinates, picture.num_tiles, picture.page) == (False, "pixel", 1, None)
    usage = answer.prompt_usage
    assert (usage.num_images, usage.num_videos, usage.num_audios, usage.audio_tokens) == (1, 1, 0, 0)
    assert usage.media_tokens == video.num_tokens + 6 and usage.prompt_tokens > usage.media_tokens
    times = answer.times
    assert min(times.fetch_s, times.decode_media_s, times.preprocess_s) > 0 and times.prepared_at > 5.0
    assert answer.media_places == [None, None]
    assert prepare_one(preparer, SEEN)[1].media_places == [PLACE]


def test_audio_is_counted() -> None:
    def make_item(modality: Modality, start: int, stop: int) -> MediaItem:
        slots = np.arange(start, stop)
        return MediaItem(modality=modality, span=(start, stop), slots=slots, hash=b"", features={}, num_units=1)

    items = (make_item(Modality.AUDIO, 1, 4), make_item(Modality.IMAGE, 4, 9), make_item(Modality.AUDIO, 9, 10))
    ids = np.arange(12)
    usage = preparer_module._count(MultimodalInput(token_ids=ids, positions=ids, next_position=12, items=items))
    assert (usage.prompt_tokens, usage.media_tokens, usage.audio_tokens) == (12, 9, 4)
    assert (usage.num_audios, usage.num_images, usage.num_videos) == (2, 1, 0)


def test_media_that_are_encoded_are_not_decoded_until_they_are_needed(preparer: RequestPreparer, known: Known) -> None:
    token_request, answer = prepare_one(preparer, SEEN)
    [item] = token_request.prompt.items
    assert item.has_arrays and {*answer.load_features} == {0}
    preparer.reset_caches()
    prepare_one(preparer, SEEN)
    known.encoded.add(item.hash)
    token_request, answer = prepare_one(preparer, SEEN)
    assert not token_request.prompt.items[0].has_arrays
    np.testing.assert_array_equal(answer.load_features[0]()["pixels"], item.features["pixels"])
    pixels = replace(SEEN, media=(replace(make_part(), source=make_picture(56, 84, 1)),))
    assert prepare_one(preparer, pixels)[1].load_features == {}, "a picture of the caller, who may change it"


def test_caches_are_counted_and_forgotten(preparer: RequestPreparer) -> None:
    prepare_one(preparer, SEEN)
    prepare_one(preparer, SEEN)
    assert preparer.stats().total_feature_hits == 1
    preparer.reset_caches()
    prepare_one(preparer, SEEN)
    assert preparer.stats().total_feature_hits == 1


def test_what_is_recorded(preparer: RequestPreparer) -> None:
    seen: list[Any] = []
    recorder: Any = SimpleNamespace(watch=lambda *each: seen.append(each), close=lambda: seen.append(0))
    preparer.recorder = recorder
    found = prepare(preparer, SEEN, replace(SEEN, max_length=1))
    [(asked, prepared, media)] = seen
    assert {*asked} == {1, 2} and prepared == found and [each.modality for each in media] == [Modality.IMAGE]
    preparer.close()
    assert seen[1:] == [0]


def test_the_threads_of_media_end(preparer: RequestPreparer) -> None:
    prepare_one(preparer, SEEN)
    preparer.close()
    assert isinstance(prepare(preparer, SEEN)[1], RequestError)


# --- on tiny random checkpoints ---------------------------------------------------------------------------------------


def tokenize(engine: AsyncEngine, prompt: Any, **options: Any) -> list[int]:
    [request] = parse([prompt], **options)
    ids: list[int] = engine.tokenize(request).result(60).tolist()
    return ids


@pytest.mark.parametrize("template", (None, "vicuna", "chatml", "base"))
@pytest.mark.parametrize("name", ("llava", "internvl", "llama", "mistral", "qwen2"))
def test_a_prompt_begins_with_the_tokenizers_prefix_once(
    name: str, template: str | None, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Templates that write `<s>` (internvl, llama), that do not (llava, mistral, the built-in ones), and a tokenizer
    that has no prefix (qwen2): in conversations with and without pictures, and in raw prompts."""
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=CPU, chat_template_config=template) as engine:
        prompts: list[Any] = ["the game", [make_message("the game"), make_message("<s>", role="assistant")]]
        if engine.family.modalities:
            prompts += [("the game", make_picture(20, 30, 1)), [make_message(make_picture(20, 30, 1), "<s>")]]
        bos = engine.tokenizer.bos_token_id
        assert bos is not None or name == "qwen2"
        prefix = [] if bos is None or name == "qwen2" else [bos]
        for prompt in prompts:
            ids = tokenize(engine, prompt)
            assert ids[: len(prefix)] == prefix, prompt
            assert sum(token_id == bos for token_id in ids) == len(prefix), "what a user types is text"


def test_kept_tokens_stay_in_the_text_of_their_request_alone(tiny_checkpoint: Callable[[str], Path]) -> None:
    with AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=CPU) as engine:
        tokenizer = engine.tokenizer
        token = next(text for text, id in tokenizer.special_token_ids.items() if id != tokenizer.eos_token_id)
        bias = {tokenizer.special_token_ids[token]: 100.0}
        [request] = parse(["a"], logit_bias=bias, max_new_tokens=2, ignore_eos=True)
        plain, kept = ask(engine, [request, replace(request, kept_tokens=(token,))])
        assert (plain.text, kept.text) == ("", token * 2)


def test_pieces_that_spell_the_prefix(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = ChatTemplateConfig("mine", user="<s><s>[", eoh="]")
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=CPU, chat_template_config=config) as engine:
        bos = engine.tokenizer.bos_token_id
        assert tokenize(engine, "a") == [bos, *engine.tokenizer.encode("[a]")]
