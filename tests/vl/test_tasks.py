from __future__ import annotations

import pytest

from seesay.config import GenerationConfig
from seesay.vl.tasks import find_tasks


@pytest.mark.parametrize(
    ("model_type", "name", "first", "prompt"),
    [
        ("", "deepseek-ai/DeepSeek-OCR", "markdown", "<|grounding|>Convert the document to markdown."),
        ("glm_ocr", "", "text", "Text Recognition:"),
        ("", "/models/PaddleOCR-VL/", "text", "OCR:"),
        ("dots_ocr", "x", "text", "Extract the text content from this image."),
    ],
)
def test_models_that_read_pages_are_asked_as_they_were_trained(
    model_type: str, name: str, first: str, prompt: str
) -> None:
    tasks = find_tasks(model_type, name)
    assert next(iter(tasks)) == first and tasks[first].prompt == prompt


def test_any_model_can_be_asked() -> None:
    assert list(find_tasks("llava", "some/model")) == ["markdown", "text"]
    assert list(find_tasks("qwen2_5_vl")) == ["markdown", "text", "html"]


def test_options_against_loops_are_options_of_an_answer() -> None:
    task = find_tasks("deepseek_ocr")["markdown"]
    config = GenerationConfig(**task.answer_options)
    assert (config.no_repeat_ngram_size, config.ngram_window) == (30, 90)
    assert config.whitelist_token_ids == [128821, 128822]
    assert find_tasks("glm_ocr")["text"].answer_options == {}
