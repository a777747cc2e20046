"""Every form of prompt that the pipeline accepts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from asking import messages_of
from PIL import Image

from seesay.config import GenerationConfig
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, MediaPart, Modality, TextPart
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN
from seesay.vl.prompts.conversation_parts import parse_messages, parse_prompts

PICTURE = Image.new("RGB", (4, 4))
OTHER = Image.new("RGB", (5, 5))


def shape(request: GenerationRequest | RequestError) -> Any:
    """A request's messages as nested tuples."""
    assert not isinstance(request, RequestError), request
    return [(m.role, *(p.text if isinstance(p, TextPart) else p.source for p in m.parts)) for m in messages_of(request)]


def only(prompts: Any, **kwargs: Any) -> Any:
    requests, is_list = parse_prompts(prompts, **kwargs)
    assert not is_list
    return requests[0]


def error_of(prompt: Any) -> Any:
    error = only(prompt)
    assert isinstance(error, RequestError)
    return error


def in_messages(*content: Any) -> Any:
    return [{"role": "user", "content": list(content)}]


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("hi", ("hi",)),
        (("what?", PICTURE), (PICTURE, "what?")),
        ((PICTURE, "what?"), (PICTURE, "what?")),
        (("what?", [PICTURE, OTHER]), (PICTURE, OTHER, "what?")),
        (([PICTURE, OTHER], "what?"), (PICTURE, OTHER, "what?")),
        (("what?", []), ("what?",)),
        (("what?", "http://x/a.jpg"), ("http://x/a.jpg", "what?")),
        (("http://x/a", "what?"), ("http://x/a", "what?")),
        (("tiger.jpeg", "what?"), ("tiger.jpeg", "what?")),
        (("what?", Path("tiger.jpeg")), (Path("tiger.jpeg"), "what?")),
        (("what?", b"bytes"), (b"bytes", "what?")),
        ((f"a {IMAGE_TOKEN} b", PICTURE), ("a ", PICTURE, " b")),
        ((f"{IMAGE_TOKEN}{IMAGE_TOKEN}\nboth", [PICTURE, OTHER]), (PICTURE, OTHER, "\nboth")),
    ],
)
def test_single_prompts(prompt: Any, parts: Any) -> None:
    assert shape(only(prompt)) == [("user", *parts)]


BASE64 = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()


@pytest.mark.parametrize("question", ["what is in photo.png", "Like https://x/b.jpg", "photo.mp4?", "see\na.png"])
@pytest.mark.parametrize(
    "picture",
    [
        BASE64,
        BASE64[:40] + "\n" + BASE64[40:],
        base64.b64encode(b"\0\0\0\x18ftypmp42" + bytes(20)).decode(),
        "/data/pictures/0001",
        "0001",
        "photo.png",
        "https://x/a",
        "data:image/png;base64,AAAA",
        "DATA:;base64,AAAA",
        "file:///a",
        "FILE",
    ],
)
def test_the_question_may_end_as_a_file_does(question: str, picture: Any, tmp_path: Path) -> None:
    """The documented order counts unless only the first text can be the media."""
    if picture == "FILE":
        picture = str(tmp_path / "a picture without suffix")
        Path(picture).write_bytes(b"\x89PNG")
    assert shape(only((question, picture))) == [("user", picture, question)]


@pytest.mark.parametrize("question", ["what?", "Describe", "what is it?", "data: which?", "iVBOR is what?", "o" * 5000])
@pytest.mark.parametrize(
    "picture",
    [BASE64, "photo.png", "my photo.PNG", "https://x/a", "https://x/my photo.png", "data:image/png,x", "FILE"],
)
def test_the_media_may_come_first(question: str, picture: Any, tmp_path: Path) -> None:
    if picture == "FILE":
        picture = str(tmp_path / "a picture without suffix")
        Path(picture).write_bytes(b"\x89PNG")
    elif picture == "my photo.PNG" and " " not in question:
        picture = str(tmp_path / picture)  # as likely a question, were it not there
        Path(picture).write_bytes(b"\x89PNG")
    assert shape(only((picture, question))) == [("user", picture, question)]


def test_openai_messages_are_one_prompt() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    assert shape(only(messages)) == [("system", "S"), ("user", "hi")]


def test_batches() -> None:
    mixed = ["a", ("b", PICTURE), [{"role": "user", "content": "c"}], {"role": "user", "content": "d"}]
    requests, is_list = parse_prompts(mixed)
    assert is_list
    assert [shape(r) for r in requests] == [[("user", "a")], [("user", PICTURE, "b")], [("user", "c")], [("user", "d")]]
    assert parse_prompts([]) == ([], True)
    requests, is_list = parse_prompts(["a"])
    assert is_list and len(requests) == 1
    requests, is_list = parse_prompts([[{"role": "user", "content": "a"}]])
    assert is_list and len(requests) == 1


def test_one_bad_prompt_leaves_the_others() -> None:
    requests, _ = parse_prompts(["a", 7, ("b", PICTURE, 1), None, []])
    assert isinstance(requests[1], RequestError) and "of type int" in str(requests[1])
    assert "has 3" in str(requests[2])
    assert "None" in str(requests[3])
    assert "empty list" in str(requests[4])
    assert shape(requests[0]) == [("user", "a")]


def test_order_of_parts_is_kept() -> None:
    part = {"type": "image_url", "image_url": {"url": "u"}}
    messages = in_messages({"type": "text", "text": "a"}, part, {"type": "text", "text": "b"}, part, "c")
    assert shape(only(messages)) == [("user", "a", "u", "b", "u", "c")]


def test_image_token_in_messages() -> None:
    images = [{"type": "image_url", "image_url": {"url": u, "max_dynamic_patch": 12}} for u in "12"]
    text = {"type": "text", "text": f"Image-1: {IMAGE_TOKEN}\nImage-2: {IMAGE_TOKEN}\nCompare."}
    request = only(in_messages(text, *images))
    assert shape(request) == [("user", "Image-1: ", "1", "\nImage-2: ", "2", "\nCompare.")]
    assert request.prompt[0].parts[1].options == {"max_dynamic_patch": 12}
    assert request.prompt[0].parts[1].is_placed
    assert not only(in_messages({"type": "text", "text": "see"}, images[0])).prompt[0].parts[1].is_placed
    # What the model answered, or a tool, may mention the token.
    later = [*in_messages(text, *images), *({"role": role, "content": IMAGE_TOKEN} for role in ("assistant", "tool"))]
    assert shape(only(later))[1:] == [("assistant", IMAGE_TOKEN), ("tool", IMAGE_TOKEN)]
    assert "2 <IMAGE_TOKEN> for 1 image" in str(error_of(in_messages(text, images[0])))


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (f"one {IMAGE_TOKEN} two", "the prompt has 1 <IMAGE_TOKEN> for 0 image(s)"),
        ((f"one {IMAGE_TOKEN} two", []), "the text has 1 <IMAGE_TOKEN> for 0 image(s)"),
        ((f"see {VIDEO_TOKEN}", PICTURE), "the text has 1 <VIDEO_TOKEN> for 0 video(s)"),
        ((f"see {IMAGE_TOKEN}", "clip.mp4"), "the text has 1 <IMAGE_TOKEN> for 0 image(s)"),
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"see {IMAGE_TOKEN}"},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "this"}]},
            ],
            "messages[1] has 1 <IMAGE_TOKEN> for 0 image(s)",
        ),
    ],
)
def test_markers_without_media(prompt: Any, told: str) -> None:
    error = error_of(prompt)
    assert str(error).startswith(f"{told}; the numbers must be equal: give one ")
    assert error.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("prompt", [f"raw {IMAGE_TOKEN}", (f"raw {IMAGE_TOKEN} {VIDEO_TOKEN}", PICTURE)])
def test_markers_without_media_in_a_raw_prompt(prompt: Any) -> None:
    assert "_TOKEN> for 0 " in str(only(prompt, do_preprocess=False))


def test_images_and_a_video_placed_apart() -> None:
    video = {"type": "video", "video": ["f1", "f2"], "fps": 2.0}
    image = {"type": "image", "image": PICTURE}
    text = {"type": "text", "text": f"video {VIDEO_TOKEN} end {IMAGE_TOKEN}"}
    parts = only(in_messages(image, video, text)).prompt[0].parts
    assert [p.text if isinstance(p, TextPart) else p.modality.value for p in parts] == [
        "video ",
        "video",
        " end ",
        "image",
    ]
    kept = only(in_messages(video, image, {"type": "text", "text": f"see {IMAGE_TOKEN}"})).prompt[0].parts
    assert [p.text if isinstance(p, TextPart) else p.modality.value for p in kept] == ["video", "see ", "image"]


@pytest.mark.parametrize(
    ("part", "modality", "source", "options"),
    [
        ({"type": "image_url", "image_url": "u"}, "image", "u", {}),
        ({"type": "image_url", "image_url": {"url": "u", "detail": "auto"}}, "image", "u", {}),
        ({"type": "image_url", "image_url": {"url": "u", "detail": "low"}}, "image", "u", {"detail": "low"}),
        ({"type": "image_url", "image_url": {"url": "u", "min_pixels": 4, "max_pixels": 8}}, "image", "u",
         {"min_pixels": 4, "max_pixels": 8}),
        ({"type": "image", "image": PICTURE, "max_pixels": 8}, "image", PICTURE, {"max_pixels": 8}),
        ({"type": "image", "url": "u"}, "image", "u", {}),
        ({"type": "image_data", "image_data": {"data": PICTURE}}, "image", PICTURE, {}),
        ({"type": "video_url", "video_url": {"url": "u", "fps": 1, "num_frames": None}}, "video", "u", {"fps": 1}),
        ({"type": "video", "video": "v.mp4", "num_frames": 8}, "video", "v.mp4", {"num_frames": 8}),
    ],
)  # fmt: skip
def test_media_parts(part: dict[str, Any], modality: str, source: Any, options: dict[str, Any]) -> None:
    (parsed,) = only(in_messages(part)).prompt[0].parts
    assert parsed == MediaPart(modality=Modality(modality), source=source, options=options)


@pytest.mark.parametrize(
    ("messages", "message", "param"),
    [
        ([{"content": "x"}], "no role", "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "unknown role 'robot'; known are system, user, assistant,",
         "messages[0].role"),
        ([{"role": "user"}], "no content", "messages[0].content"),
        ([{"role": "user", "content": 3}], "of type int", "messages[0].content"),
        ([{"role": "user", "content": "x", "weight": 1}], "'weight'", "messages[0].weight"),
        (in_messages({"type": "sound"}), "'sound'", "messages[0].content[0].type"),
        (in_messages({"type": "audio"}), "exactly one of audio", "messages[0].content[0]"),
        (in_messages({"type": "audio", "audio": "a", "fps": 2}), "'fps'", "messages[0].content[0].fps"),
        (in_messages({"type": "input_audio", "input_audio": {"data": "AAAA"}}), "format must be wav",
         "messages[0].content[0].input_audio.format"),
        (in_messages({"type": "text", "text": "x", "bold": True}), "'bold'", "messages[0].content[0].bold"),
        (in_messages({"type": "text"}), "must be a text", "messages[0].content[0].text"),
        (in_messages({"type": "image_url", "image_url": {}}), "no url", "messages[0].content[0].image_url.url"),
        (in_messages({"type": "image_url", "image_url": {"url": "u", "detail": "most"}}), "'most'",
         "messages[0].content[0].image_url.detail"),
        (in_messages({"type": "video", "video": "v", "nframes": 4, "num_frames": 4}), "both nframes and num_frames",
         "messages[0].content[0].nframes"),
        (in_messages({"type": "image"}), "exactly one", "messages[0].content[0]"),
        (in_messages({"type": "image", "image": "a", "url": "b"}), "exactly one", "messages[0].content[0]"),
        (in_messages(4), "object with a type", "messages[0].content[0]"),
    ],
)  # fmt: skip
def test_bad_messages(messages: Any, message: str, param: str) -> None:
    error = error_of(messages)
    assert message in str(error)
    assert error.param == param


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((PICTURE, OTHER), "must be the text"),
        (("what?", None), "None"),
        ((f"{IMAGE_TOKEN} {IMAGE_TOKEN}", PICTURE), "2 <IMAGE_TOKEN> for 1"),
    ],
)
def test_bad_pairs(pair: Any, message: str) -> None:
    assert message in str(error_of(pair))


def test_tool_messages_and_empty_fields() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = parse_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ]
    )
    assert messages[0].parts == () and messages[0].extra == {"tool_calls": [call]}
    assert messages[1].extra == {"tool_call_id": "1"}


def test_video_by_name() -> None:
    for source in ("video.mp4", "https://x/video.webm?sig=1.png", "data:video/mp4;base64,AA"):
        assert only(("what?", source)).prompt[0].parts[0].modality is Modality.VIDEO


def test_without_preprocessing() -> None:
    request = only("<s>raw", do_preprocess=False)
    assert request.prompt == "<s>raw" and request.media == ()
    request = only((f"raw {IMAGE_TOKEN}", PICTURE), do_preprocess=False)
    assert request.prompt == f"raw {IMAGE_TOKEN}" and request.media[0].source is PICTURE
    assert "do_preprocess" in str(only([{"role": "user", "content": "x"}], do_preprocess=False))


def test_gen_configs() -> None:
    one, two = GenerationConfig(max_new_tokens=1), GenerationConfig(max_new_tokens=2)
    requests, _ = parse_prompts(["a", "b"], [one, two])
    assert [r.gen_config.max_new_tokens for r in requests if isinstance(r, GenerationRequest)] == [1, 2]
    assert only("a", gen_config=[two]).gen_config is two
    with pytest.raises(ValueError, match="2 for 1"):
        parse_prompts("a", [one, two])
    with pytest.raises(TypeError, match="dict"):
        parse_prompts("a", [{}])  # type: ignore[list-item]


def test_options_of_qwen_vl_utils_are_passed_on() -> None:
    options = {"nframes": 8, "video_start": 1.5, "video_end": 3, "total_pixels": 1 << 20, "resized_height": 28}
    (part,) = only(in_messages({"type": "video", "video": "a.mp4", **options})).prompt[0].parts
    assert part.options == options
    frames = ["file:///a.png", "file:///b.png"]
    (part,) = only(in_messages({"type": "video", "video": frames, "sample_fps": 0.5})).prompt[0].parts
    assert part.source == frames and part.options == {"sample_fps": 0.5}
