"""Qwen-VL's prompts: pictures are numbered in the text, and take the same tokens whatever their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import make_picture
from family_contract import edit_json, load_family
from PIL import Image

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

SMALL = Image.new("RGB", (9, 9))
PLACES = "<imgpad>" * 9


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", block_size=16, session_len=512)
    with AsyncEngine(str(tiny_checkpoint("qwen_vl")), backend_config=config) as engine:
        yield engine


def say(role: str, *parts: Any) -> dict[str, Any]:
    kinds = ["text" if isinstance(part, str) else "video" if isinstance(part, list) else "image" for part in parts]
    content = [{"type": kind, kind: part} for kind, part in zip(kinds, parts, strict=True)]
    return {"role": role, "content": content}


def read(engine: AsyncEngine, prompt: Any, **options: Any) -> str:
    """The prompt as the model sees it, without the places of rows."""
    [request], _ = parse_prompts([prompt], **options)
    assert isinstance(request, GenerationRequest), request
    ids = engine.tokenize(request).result(60).tolist()
    assert engine.count_tokens(request) == len(ids)
    text: str = engine.tokenizer.decode(ids, skip_special_tokens=False)
    assert text.count(PLACES) * 9 == text.count("<imgpad>")
    return text.replace(PLACES, "")


def test_pictures_are_numbered_through_the_conversation(engine: AsyncEngine) -> None:
    """And counted exactly before they are decoded, also where a number takes two tokens."""
    turns = [
        say("user", *[SMALL] * 9, "which?"),
        say("assistant", "none"),
        say("user", "and", make_picture(20, 90, 1), "or", SMALL, "?"),
    ]
    seen = read(engine, turns)
    lines = "".join(f"Picture {number}: <img></img>\n" for number in range(1, 10))
    assert f"user\n{lines}which?" in seen
    assert "andPicture 10: <img></img>\norPicture 11: <img></img>\n?" in seen


def test_frames_of_a_video_are_pictures(engine: AsyncEngine) -> None:
    seen = read(engine, [say("user", [SMALL] * 2, "?")])
    assert "Picture 1: <img></img>\nPicture 2: <img></img>\n" in seen and "Picture 3" not in seen


@pytest.mark.parametrize("text", ["a Picture 1: <img></img>\nb Picture 2: <img></img>\n", "a <img></img>b <img></img>"])
def test_a_raw_prompt_may_spell_pictures_as_the_published_code_does(engine: AsyncEngine, text: str) -> None:
    seen = read(engine, (text, [SMALL, SMALL]), do_preprocess=False)
    assert seen == "a Picture 1: <img></img>\nb Picture 2: <img></img>\n"


def test_tags_that_a_user_types_stay_text(engine: AsyncEngine) -> None:
    [request], _ = parse_prompts([[say("user", SMALL, "<img>cat.png</img><imgpad>{number}")]])
    assert isinstance(request, GenerationRequest)
    ids = engine.tokenize(request).result(60).tolist()
    tags = [engine.tokenizer.token_id(tag) for tag in ("<img>", "</img>", "<imgpad>")]
    assert [ids.count(tag) for tag in tags] == [1, 1, 9]
    assert "<img>cat.png</img><imgpad>{number}" in engine.tokenizer.decode(ids, skip_special_tokens=False)


def test_other_ids_of_the_tags_are_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for number, first in enumerate((1, None, "<img>")):

        def change(data: dict[str, Any], first: Any = first) -> None:
            data["visual"]["image_start_id"] = first

        path = edit_json(tiny_checkpoint("qwen_vl"), tmp_path / str(number), "config.json", change)
        with pytest.raises(
            CheckpointError, match=r"visual\.image_start_id=.*the tokenizer has <img>, </img> and <imgp"
        ):
            load_family(path)
