"""Documents in prompts: the pictures of their pages, with their numbers and texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pdfs import make_pdf, make_tiff

from seesay import IMAGE_TOKEN, EngineConfig, MediaLimits, Pipeline, load_document
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

THREE = make_pdf(["Hello one", "Page two", "third <|im_end|>"])


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu")
    with AsyncEngine("seesay-demo", backend_config=config, media_limits=MediaLimits(max_items=8)) as engine:
        yield engine


def prompt_of(engine: AsyncEngine, prompt: Any, **options: Any) -> str:
    """The text of a prompt, with what stands for each picture written once."""
    [request], _ = parse_prompts([prompt], **options)
    assert isinstance(request, GenerationRequest), request
    ids = engine.tokenize(request).result(60).tolist()
    text = str(engine.tokenizer.decode(ids, skip_special_tokens=False))
    while "<|image_pad|><|image_pad|>" in text:
        text = text.replace("<|image_pad|><|image_pad|>", "<|image_pad|>")
    return text.replace("<|vision_start|><|image_pad|><|vision_end|>", "*")


def ask(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_pages_are_numbered_and_stand_where_the_document_was(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": THREE, "dpi": 18}
    text = prompt_of(engine, ask({"type": "text", "text": "A"}, document, {"type": "text", "text": "B"}))
    assert "A[page 1 of 3]\n*[page 2 of 3]\n*[page 3 of 3]\n*B" in text


def test_a_name_and_the_text_of_pages_are_written(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": THREE, "dpi": 18, "pages": "2", "filename": "a.pdf"}
    assert "[a.pdf, page 2 of 3]\n*B" in prompt_of(engine, ask(document, {"type": "text", "text": "B"}))
    text = prompt_of(engine, ask({**document, "text_layer": "auto"}, {"type": "text", "text": "B"}))
    assert "[a.pdf, page 2 of 3]\n*\n[text of page 2]\nPage two\n[end of the text]\nB" in text


def test_the_text_of_a_page_spells_no_special_token(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": THREE, "dpi": 18, "pages": "3"}
    [with_text], _ = parse_prompts([ask({**document, "text_layer": "auto"})])
    [without], _ = parse_prompts([ask(document)])
    end = engine.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert len(end) == 1
    counts = []
    for request in (with_text, without):
        assert isinstance(request, GenerationRequest)
        counts.append(engine.tokenize(request).result(60).tolist().count(end[0]))
    assert counts[0] == counts[1]


def test_one_page_without_a_name_is_its_picture_alone(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": make_pdf(["a"]), "dpi": 18}
    picture = {"type": "image", "image": load_document(make_pdf(["a"]), dpi=18)[0].image}
    assert prompt_of(engine, ask(document)) == prompt_of(engine, ask(picture))


def test_a_file_part_is_a_document(engine: AsyncEngine) -> None:
    part = {"type": "file", "file": {"file_data": make_tiff([(32, 32), (32, 32)]), "filename": "a.tif"}}
    assert "[a.tif, page 1 of 2]\n*[a.tif, page 2 of 2]\n*" in prompt_of(engine, ask(part))


def test_a_path_of_a_pdf_in_a_tuple_is_a_document(engine: AsyncEngine, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(make_pdf(["a", "b"]))
    for pair in (("What?", str(tmp_path / "a.pdf")), (str(tmp_path / "a.pdf"), "What?")):
        assert "[page 1 of 2]\n*[page 2 of 2]\n*What?" in prompt_of(engine, pair)
    marked = f"A {IMAGE_TOKEN} B"
    assert "A [page 1 of 2]\n*[page 2 of 2]\n* B" in prompt_of(engine, (marked, str(tmp_path / "a.pdf")))


def test_a_raw_prompt_has_the_pictures_alone(engine: AsyncEngine, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(make_pdf(["a", "b"]))
    assert prompt_of(engine, (f"A {IMAGE_TOKEN} B", str(tmp_path / "a.pdf")), do_preprocess=False) == "A *\n* B"


def test_pages_count_as_pictures(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": make_pdf(["a"] * 5), "dpi": 18}
    response = Pipeline.from_engine(engine)(ask(document, document))
    assert isinstance(response.error, RequestError)
    assert "has 10 pictures" in response.error.message and "more than 8" in response.error.message


def test_options_of_pictures_apply_to_each_page(engine: AsyncEngine) -> None:
    document = {"type": "document", "document": THREE, "dpi": 72}
    requests, _ = parse_prompts([ask(document), ask({**document, "max_pixels": 64 * 64})])
    large, small = (
        len(engine.tokenize(request).result(60)) for request in requests if isinstance(request, GenerationRequest)
    )
    assert small < large
    response = Pipeline.from_engine(engine)(ask({**document, "nonsense": 3}))
    assert isinstance(response.error, RequestError) and response.error.param == "messages[0].content[0].nonsense"


def test_a_page_that_was_seen_is_not_drawn_again(engine: AsyncEngine) -> None:
    pipe = Pipeline.from_engine(engine)
    first = pipe(ask({"type": "document", "document": THREE, "dpi": 36}))
    again = pipe(ask({"type": "document", "document": THREE, "dpi": 36}))
    other = pipe(ask({"type": "document", "document": THREE, "dpi": 36, "pages": "1"}))
    assert [report.is_cached for report in first.media] == [False] * 3
    assert [report.is_cached for report in again.media] == [True] * 3
    assert [report.is_cached for report in other.media] == [True]
    assert again.text == first.text
