"""MiniCPM-V's prompts: numbered pictures, options of one of them, frames of videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import make_picture
from PIL import Image

from seesay.config import EngineConfig
from seesay.engine.engine import AsyncEngine
from seesay.values import GenerationRequest
from seesay.vl.messages import parse_prompts

PICTURE = make_picture(40, 90, 5)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("minicpmv")), backend_config=config) as engine:
        yield engine


def talk(*parts: Any, **options: Any) -> list[dict[str, Any]]:
    """A message of texts, pictures, and lists of frames, which all have the options."""
    content: list[dict[str, Any]] = []
    for part in parts:
        kind = "text" if isinstance(part, str) else "image" if isinstance(part, Image.Image) else "video"
        content.append({"type": kind, kind: part, **({} if kind == "text" else options)})
    return [{"role": "user", "content": content}]


def read(engine: AsyncEngine, prompt: Any, **options: Any) -> str:
    """The prompt as the model sees it, with one <unk> for each picture and slice."""
    [request], _ = parse_prompts([prompt], **options)
    assert isinstance(request, GenerationRequest), request
    ids = engine.tokenize(request).result(30).tolist()
    assert engine.count_tokens(request) == len(ids)
    text: str = engine.tokenizer.decode(ids, skip_special_tokens=False)
    return text.replace("<unk><unk><unk>", "<unk>")


WHOLE, SLICE = "<image><unk></image>", "<slice><unk></slice>"


def test_pictures_are_numbered_through_the_prompt(engine: AsyncEngine) -> None:
    """And counted exactly before they are decoded, also where a number takes two tokens."""
    small = Image.new("RGB", (9, 9))
    seen = read(engine, talk(*[small] * 12, "?"))
    assert [f"<image_id>{number}</image_id>{WHOLE}" in seen for number in range(13)] == [True] * 12 + [False]


def test_options_change_the_tokens_of_one_picture(engine: AsyncEngine) -> None:
    first = talk(PICTURE, max_slice_nums=1, use_image_id=False)[0]["content"]
    second = talk(PICTURE, "?", max_slice_nums=2)[0]["content"]
    seen = read(engine, [{"role": "user", "content": [*first, *second]}])
    assert f"user\n{WHOLE}\n<image_id>1</image_id>{WHOLE}{SLICE}{SLICE}\n?" in seen
    assert f"<image_id>0</image_id>{WHOLE}{SLICE}{SLICE}{SLICE}\n{SLICE}" in read(engine, talk(PICTURE))


def test_frames_of_a_video_have_no_numbers_and_few_slices(engine: AsyncEngine) -> None:
    """As the published code writes them, unless the request says more."""
    seen = read(engine, talk([PICTURE] * 2, PICTURE, "?"))
    assert seen.count(f"{WHOLE}{SLICE}{SLICE}\n") == 2 and "<image_id>0" not in seen
    assert "<image_id>2</image_id>" in seen
    assert "<image_id>1</image_id>" in read(engine, talk([PICTURE] * 2, "?", use_image_id=True))


def test_a_raw_prompt_may_spell_pictures_as_the_published_code_does(engine: AsyncEngine) -> None:
    small = Image.new("RGB", (9, 9))
    seen = read(engine, ("a (<image>./</image>) b <image>./</image>", [small, small]), do_preprocess=False)
    assert seen == f"a <image_id>0</image_id>{WHOLE} b <image_id>1</image_id>{WHOLE}"
