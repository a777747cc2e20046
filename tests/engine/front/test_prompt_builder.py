"""Prompts of requests of every kind, and their limits at the ends and one beyond, with the tokenizer, the template and
the family of the built-in checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import make_picture
from demo_model import MODEL, load_prefixed, make_texts
from sounds import make_video

from seesay.config import GenerationConfig, MediaLimits, VisionConfig
from seesay.engine.front.prompt_builder import PromptBuilder
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.video.video_file import VideoFile
from seesay.system.cancellation import Cancellation
from seesay.values import GenerationRequest, MediaPart, Message, Modality, RenderedPrompt, TextPart
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN
from seesay.vl.families.qwen2_5_vl import Qwen2_5VL
from seesay.vl.family import Wording
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.prompts.prompt import hash_item

TEXTS = make_texts()
SMALL = {"min_pixels": 28 * 28}
PICTURE = MediaPart(modality=Modality.IMAGE, source=make_picture(56, 56, 1), options=SMALL)
WIDE = MediaPart(modality=Modality.IMAGE, source=make_picture(56, 84, 2), options=SMALL)
BROKEN = MediaPart(modality=Modality.IMAGE, source=b"broken")
ASKED = GenerationRequest(prompt="a b c", gen_config=GenerationConfig(max_new_tokens=5))
LONG = 1 << 20
"""Characters that any prompt may have."""

Build = Callable[..., PromptBuilder]


@pytest.fixture(scope="module")
def media() -> Iterator[MediaFrontend]:
    frontend = MediaFrontend(MODEL.family, VisionConfig(thread_num=2), MediaLimits())
    yield frontend
    frontend.close()


@pytest.fixture
def make_builder(media: MediaFrontend) -> Build:
    def make(session_len: int = 200, *, texts: TextFrontend = TEXTS, **options: Any) -> PromptBuilder:
        options = {"max_prefill_token_num": 8, "takes_media": True, **options}
        return PromptBuilder(MODEL, texts, media, session_len=session_len, **options)

    return make


@pytest.fixture
def builder(make_builder: Build) -> PromptBuilder:
    return make_builder()


@pytest.fixture
def sees_whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family is one of those whose prompts' tokens see each other."""
    monkeypatch.setattr(Qwen2_5VL, "is_prefix_lm", True)


def talk(*parts: str | MediaPart, role: str = "user", **changes: Any) -> GenerationRequest:
    message = Message(role=role, parts=tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts))
    return replace(ASKED, prompt=(message,), **changes)


def read(builder: PromptBuilder, request: GenerationRequest) -> str:
    return TEXTS.tokenizer.decode(builder.tokenize(request), skip_special_tokens=False)


def find_error(call: Callable[..., object], *arguments: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(*arguments)
    return caught.value


def is_too_long(call: Callable[..., object], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except RequestError as error:
        assert error.code is ErrorCode.CONTEXT_TOO_LONG
        return True
    return False


# --- the three kinds of prompts ---------------------------------------------------------------------------------------


def test_a_conversation_goes_through_the_template(builder: PromptBuilder) -> None:
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    expected = f"{system}<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert read(builder, talk("the ", "cat")) == expected
    own = talk("the cat", chat_template="{% for m in messages %}[{{ m.content }}{{ mark }}]{% endfor %}")
    assert read(builder, own) == "[the cat]"
    assert read(builder, replace(own, template_options={"mark": "!"})) == "[the cat!]"


def test_what_a_request_says_of_thoughts_is_an_option_of_its_template(builder: PromptBuilder) -> None:
    own = talk("a", chat_template="{{ enable_thinking }}", enable_thinking=False)
    assert read(builder, own) == "False"
    assert read(builder, replace(own, template_options={"enable_thinking": "maybe"})) == "maybe"


def test_a_raw_text_is_taken_as_it_is(builder: PromptBuilder) -> None:
    assert read(builder, replace(ASKED, prompt="<|im_start|>the cat")) == "<|im_start|>the cat"


def test_token_ids_are_taken_as_they_are(builder: PromptBuilder) -> None:
    ids = (0, 5, MODEL.vocab_size - 1)
    prompt, media = builder.build(replace(ASKED, prompt=ids))
    assert tuple(prompt.token_ids) == ids and prompt.token_ids.dtype == "int64" and media == []


@pytest.mark.parametrize("wrong", [-1, MODEL.vocab_size, 1.0, "a", None])
def test_ids_that_the_vocabulary_has_not_are_refused(builder: PromptBuilder, wrong: Any) -> None:
    error = find_error(builder.build, replace(ASKED, prompt=(3, wrong, 4)))
    assert f"{wrong!r} at position 1 is not in the vocabulary (0 to {MODEL.vocab_size - 1})" in str(error)
    assert (error.code, error.param) == (ErrorCode.INVALID_REQUEST, "input_ids")


def test_the_prefix_of_a_tokenizer_may_be_left_out(make_builder: Build, tmp_path: Path) -> None:
    builder = make_builder(texts=TextFrontend(load_prefixed(tmp_path), TEXTS.chat_template))
    assert read(builder, ASKED) == "<|endoftext|>a b c"
    assert read(builder, replace(ASKED, add_special_tokens=False)) == "a b c"
    assert builder.tokenize_text("a") == [1010, *builder.tokenize_text("a", add_special_tokens=False)]


@pytest.fixture
def ends_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family writes a mark behind a prompt, unless that is the beginning of the answer."""

    def complete(family: Qwen2_5VL, rendered: RenderedPrompt, *, is_open: bool = False) -> RenderedPrompt:
        return rendered if is_open else replace(rendered, text=f"{rendered.text}#")

    monkeypatch.setattr(Qwen2_5VL, "complete", complete)


@pytest.mark.usefixtures("ends_with_a_mark")
def test_only_a_conversation_may_end_with_the_beginning_of_the_answer(builder: PromptBuilder) -> None:
    own, goes_on = "{{ messages[0].content }}", {"continue_final": True}
    assert read(builder, talk("a", chat_template=own)) == "a#"
    assert read(builder, talk("a", chat_template=own, template_options=goes_on)) == "a"
    assert read(builder, replace(ASKED, prompt="a", template_options=goes_on)) == "a#"


@pytest.mark.usefixtures("sees_whole_prompts")
def test_answers_that_see_less_than_the_prompt_cannot_be_begun_by_it(make_builder: Build) -> None:
    builder = make_builder(max_prefill_token_num=200)
    request = talk("a", template_options={"continue_final": True}, chat_template="{{ messages[0].content }}")
    error = find_error(builder.build, request)
    assert error.code is ErrorCode.INVALID_REQUEST and "the beginning of an answer" in str(error)
    for taken in (replace(request, wants_answer=False), replace(request, template_options={}), ASKED):
        assert len(builder.tokenize(taken))


# --- media ------------------------------------------------------------------------------------------------------------


def test_media_stand_in_their_places(builder: PromptBuilder) -> None:
    write = "{{ part.text or '<|vision_start|><|image_pad|><|vision_end|>' }}"
    own = "{% for part in messages[0].content %}" + write + "{% endfor %}"
    raw = replace(ASKED, prompt=f"a{IMAGE_TOKEN}b{IMAGE_TOKEN}", media=(PICTURE, WIDE))
    start, pad, end = (
        TEXTS.tokenizer.special_token_ids[f"<|{name}|>"] for name in ("vision_start", "image_pad", "vision_end")
    )
    [a], [b] = map(TEXTS.tokenizer.encode, "ab")
    placed = replace(ASKED, prompt=(a, pad, b, pad), media=(replace(PICTURE, position=1), replace(WIDE, position=3)))
    for request in (raw, talk("a", PICTURE, "b", WIDE, chat_template=own), placed):
        prompt, media = builder.build(request)
        assert prompt.token_ids.tolist() == [a, start, *[pad] * 4, end, b, start, *[pad] * 6, end]
        assert [item.span for item in prompt.items] == [(1, 7), (8, 16)]
        assert [(each.size.height, each.size.width) for each in media] == [(56, 56), (56, 84)]
        digest = MODEL.checkpoint.revision_digest
        assert [item.hash for item in prompt.items] == [hash_item(each.key, digest) for each in media]


def test_what_is_cached_of_media_is_found_with_the_same_salt_and_tower_alone(builder: PromptBuilder) -> None:
    request = replace(ASKED, prompt=IMAGE_TOKEN, media=(PICTURE,))
    for asked in (request, replace(request, truncate_prompt_tokens=50)):
        keys = [
            builder.build(asked)[1][0].key,
            builder.build(replace(asked, cache_salt="x"))[1][0].key,
            builder.build(asked, tower_key="y")[1][0].key,
        ]
        assert len(set(keys)) == 3 and builder.build(asked)[1][0].key == keys[0]


@pytest.mark.parametrize("changes", [{}, {"truncate_prompt_tokens": 50}])
def test_media_are_prepared_once_for_a_batch_and_for_those_who_wait(
    builder: PromptBuilder, changes: dict[str, Any]
) -> None:
    picture = MediaPart(modality=Modality.IMAGE, source=make_picture(30, 30, 3))
    request = replace(ASKED, prompt=IMAGE_TOKEN, media=(picture,), **changes)
    batch = MediaBatch(2)
    [first], [second] = (builder.build(request, batch)[1] for _ in range(2))
    assert first.features["pixels"] is second.features["pixels"]
    gone = Cancellation()
    gone.leave()
    assert find_error(builder.build, request, None, gone).code is ErrorCode.ABORTED


def test_without_the_vision_encoder_there_are_no_media(make_builder: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = make_builder(takes_media=False)
    assert len(builder.tokenize(ASKED)) == 3
    request = replace(ASKED, prompt=IMAGE_TOKEN, media=(BROKEN,))
    error = find_error(builder.build, request)
    assert error.code is ErrorCode.INVALID_MEDIA and "disable_vision_encoder" in str(error)
    monkeypatch.setattr(Qwen2_5VL, "modalities", ())
    monkeypatch.setattr(Qwen2_5VL, "markers", {})
    assert "takes no image input" in str(find_error(builder.build, request)), "a model of texts alone"


@pytest.fixture
def without_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where PyAV is missing: decoding alone tells how large a video is."""
    monkeypatch.setattr(VideoFile, "size", lambda _: None)


@pytest.fixture
def says_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family writes the size of media before them."""

    def word(family: Qwen2_5VL, modality: Modality, measures: Any) -> Wording:
        shown = "?" if measures is None else "x".join(map(str, measures["resized"]))
        return Wording(before=f"{shown} ", marker=family.markers[modality], after="!")

    monkeypatch.setattr(Qwen2_5VL, "word", word)


def make_video_request(**changes: Any) -> GenerationRequest:
    video = MediaPart(modality=Modality.VIDEO, source=make_video(None), options={"num_frames": 4, **SMALL})
    return replace(ASKED, prompt=f"a{VIDEO_TOKEN}b{IMAGE_TOKEN}", media=(video, PICTURE), **changes)


@pytest.mark.usefixtures("without_sizes", "says_sizes")
@pytest.mark.parametrize("changes", [{}, {"truncate_prompt_tokens": 100}])
def test_text_around_media_follows_the_decoded_ones(builder: PromptBuilder, changes: dict[str, Any]) -> None:
    request = make_video_request(**changes)
    text = read(builder, request)
    assert text.startswith("a28x28 <|vision_start|><|video_pad|>")
    assert "<|vision_end|>!b56x56 <|vision_start|><|image_pad|>" in text and text.endswith("<|vision_end|>!")
    assert builder.count_tokens(request) == len(builder.tokenize(request))


@pytest.mark.usefixtures("says_sizes")
def test_text_around_media_is_known_before_they_are_decoded(builder: PromptBuilder) -> None:
    request = make_video_request()
    assert read(builder, request).startswith("a28x28 <|vision_start|><|video_pad|>")
    assert builder.count_tokens(request) == len(builder.tokenize(request))


# --- how many tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        ASKED, talk("the cat"), talk("a", PICTURE, WIDE), replace(ASKED, prompt=(1, 2, 3)), make_video_request(),
        replace(ASKED, prompt=(1, 2, 3), media=(replace(PICTURE, position=1),)),
    ],
)  # fmt: skip
def test_prompts_are_counted_as_they_are_built(make_builder: Build, request_: GenerationRequest) -> None:
    num_tokens = len(make_builder().tokenize(request_))
    short = make_builder(num_tokens // 2)
    assert short.count_tokens(request_) == make_builder().count_tokens(request_) == num_tokens
    assert is_too_long(short.build, request_)


@pytest.mark.usefixtures("without_sizes")
def test_a_video_that_hides_its_size_is_decoded_to_be_counted(builder: PromptBuilder) -> None:
    request = make_video_request()
    assert builder.count_tokens(request) == len(builder.tokenize(request)) > 10


@pytest.mark.parametrize(
    "request_", [ASKED, talk("the cat"), talk("a", PICTURE, WIDE), replace(ASKED, prompt=(1, 2, 3))]
)
def test_prompt_and_answer_have_a_longest_length(make_builder: Build, request_: GenerationRequest) -> None:
    num_tokens = len(make_builder().tokenize(request_))
    assert not is_too_long(make_builder(num_tokens + 1).build, request_)
    assert is_too_long(make_builder(num_tokens).build, request_)
    for computed in (replace(request_, wants_answer=False), replace(request_, pooling="last")):
        assert not is_too_long(make_builder(num_tokens).build, computed)
        assert is_too_long(make_builder(num_tokens - 1).build, computed)


def test_a_size_that_is_not_known_counts_nothing(make_builder: Build, request: pytest.FixtureRequest) -> None:
    request_ = make_video_request()
    num_tokens = len(make_builder().tokenize(request_))
    request.getfixturevalue("without_sizes")
    [video, _] = make_builder().build(request_)[0].items
    num_video_tokens = video.span[1] - video.span[0]
    assert not is_too_long(make_builder(num_tokens - num_video_tokens + 1).build, request_), "the core refuses it"
    assert is_too_long(make_builder(num_tokens - num_video_tokens).build, request_)


def test_many_token_ids_are_not_looked_at(make_builder: Build) -> None:
    builder = make_builder(10)
    for call, most, changes in (
        (builder.build, 9, {}), (builder.build, 10, {"wants_answer": False}), (builder.count_tokens, 40, {}),
        (builder.build, 40, {"truncate_prompt_tokens": 5}),
    ):  # fmt: skip
        request = replace(ASKED, prompt=(1,) * most, **changes)
        assert not is_too_long(call, request)
        assert is_too_long(call, replace(request, prompt=(1,) * most + (-1,)))


@pytest.mark.usefixtures("sees_whole_prompts")
@pytest.mark.parametrize("changes", [{}, {"truncate_prompt_tokens": 30}])
def test_a_prompt_whose_tokens_see_each_other_fits_in_a_step(make_builder: Build, changes: dict[str, Any]) -> None:
    request = replace(ASKED, prompt=f"a{IMAGE_TOKEN}", media=(PICTURE,), **changes)
    assert not is_too_long(make_builder(max_prefill_token_num=7).build, request)
    error = find_error(make_builder(max_prefill_token_num=6).build, request)
    assert error.code is ErrorCode.CONTEXT_TOO_LONG and "max_prefill_token_num" in str(error)


def test_other_prompts_are_computed_in_several_steps(make_builder: Build) -> None:
    assert len(make_builder(max_prefill_token_num=2).tokenize(ASKED)) == 3


def test_advice_for_a_video_that_is_too_long(make_builder: Build) -> None:
    def ask(num_frames: int, **changes: Any) -> GenerationRequest:
        frames = [make_picture(56, 56, seed) for seed in range(num_frames)]
        video = MediaPart(modality=Modality.VIDEO, source=frames, options={"fps": 2.0, **SMALL})
        return replace(ASKED, prompt=f"a{VIDEO_TOKEN}", media=(video,), **changes)

    num_tokens = make_builder().count_tokens(ask(6))
    for session_len, num_fitting, changes in (
        (num_tokens + 1, 6, {}), (num_tokens, 4, {}), (num_tokens, 6, {"wants_answer": False}),
        (num_tokens - 1, 4, {"pooling": "last"}),
    ):  # fmt: skip
        error = find_error(make_builder(session_len).build, ask(8, **changes))
        assert error.code is ErrorCode.CONTEXT_TOO_LONG and error.param == "messages"
        assert str(error).endswith(f"for 8 frames: with max_frames={num_fitting} it would fit")


def test_more_media_than_tokens_are_not_opened(make_builder: Build) -> None:
    for num_items, code in ((4, ErrorCode.INVALID_MEDIA), (5, ErrorCode.CONTEXT_TOO_LONG)):
        request = replace(ASKED, prompt=IMAGE_TOKEN * num_items, media=(BROKEN,) * num_items)
        assert find_error(make_builder(4).build, request).code is code


@pytest.mark.parametrize("of_conversation", [True, False])
def test_long_texts_are_refused_before_they_are_tokenized(builder: PromptBuilder, of_conversation: bool) -> None:
    def ask(text: str) -> GenerationRequest:
        return talk(text, role="") if of_conversation else replace(ASKED, prompt=text)

    for call in (builder.build, builder.count_tokens):
        assert f"{LONG + 1} characters; at most {LONG} are taken" in str(find_error(call, ask("a" * (LONG + 1))))
        assert f"which are more than {200 if call == builder.build else 800} tokens" in str(
            find_error(call, ask("a " * 5000))
        )


def test_a_text_alone_may_be_longer_than_a_prompt(make_builder: Build) -> None:
    builder = make_builder(1000)
    assert len(builder.tokenize_text("a" + " a" * 3999)) == 4000
    assert "which are more than 4000 tokens" in str(find_error(builder.tokenize_text, " a" * 8000))
    assert f"at most {LONG} are taken" in str(find_error(builder.tokenize_text, "a" * (LONG + 1)))


# --- prompts that are cut ---------------------------------------------------------------------------------------------


def test_the_end_of_a_prompt_is_taken(make_builder: Build) -> None:
    request = replace(ASKED, prompt=tuple(range(35)))
    builder = make_builder(10)
    for most, expected in ((4, 4), (9, 9), (-1, 5)):
        cut = builder.tokenize(replace(request, truncate_prompt_tokens=most))
        assert cut.tolist() == list(range(35 - expected, 35))
    assert len(builder.tokenize(replace(ASKED, prompt=(1, 2), truncate_prompt_tokens=4))) == 2


def test_what_is_left_of_a_prompt_has_a_longest_length(make_builder: Build) -> None:
    request = replace(ASKED, prompt=tuple(range(35)), truncate_prompt_tokens=10)
    assert is_too_long(make_builder(10).build, request)
    assert not is_too_long(make_builder(11).build, request)
    computed = replace(request, wants_answer=False)
    assert not is_too_long(make_builder(10).build, computed)
    assert is_too_long(make_builder(9).build, computed)


def test_media_are_cut_off_whole(builder: PromptBuilder) -> None:
    request = replace(ASKED, prompt=f"a{IMAGE_TOKEN}b{IMAGE_TOKEN}c", media=(PICTURE, WIDE))
    for most, num_tokens, widths in ((17, 17, [56, 84]), (16, 16, [56, 84]), (15, 10, [84]), (9, 9, [84]), (8, 1, [])):
        prompt, media = builder.build(replace(request, truncate_prompt_tokens=most))
        assert (len(prompt.token_ids), [each.size.width for each in media]) == (num_tokens, widths), most
        assert len(prompt.items) == len(media)
