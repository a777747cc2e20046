from __future__ import annotations

import pytest

from seesay.config import GenerationConfig
from seesay.vl.registry import list_families
from seesay.vl.tasks import find_tasks

OLMOCR = (
    "Attached is one page of a document that you must process. Just return the plain text representation of this "
    "document as if you were reading it naturally. Convert equations to LateX and tables to HTML.\n"
    "If there are any figures or charts, label them with the following markdown syntax ![Alt text describing the "
    "contents of the figure](page_startx_starty_width_height.png)\n"
    "Return your output as markdown, with a front matter section on top specifying values for the primary_language, "
    "is_rotation_valid, rotation_correction, is_table, and is_diagram parameters."
)


@pytest.mark.parametrize(
    ("model_type", "name", "first", "prompt"),
    [
        ("", "deepseek-ai/DeepSeek-OCR", "markdown", "<|grounding|>Convert the document to markdown."),
        ("glm_ocr", "", "text", "Text Recognition:"),
        ("", "/models/PaddleOCR-VL/", "text", "OCR:"),
        ("qwen2_5_vl", "allenai/olmOCR-2-7B-1025-FP8", "markdown", OLMOCR),
        ("dots_ocr", "x", "text", "Extract the text content from this image."),
        ("lighton_ocr", "", "markdown", ""),
        ("", "lightonai/LightOnOCR-2-1B", "markdown", ""),
    ],
)
def test_models_that_read_pages_are_asked_as_they_were_trained(
    model_type: str, name: str, first: str, prompt: str
) -> None:
    tasks = find_tasks(model_type, name)
    assert next(iter(tasks)) == first and tasks[first].prompt == prompt


@pytest.mark.parametrize("architecture", ["DeepseekOCRForCausalLM", "DeepseekOcr2ForConditionalGeneration"])
def test_a_renamed_folder_is_asked_by_its_family(architecture: str) -> None:
    """The authors' layout has the type of DeepSeek-VL2."""
    family = list_families()[architecture].__module__.rpartition(".")[2]
    assert find_tasks("deepseek_vl_v2", "/models/reader", family)["text"].prompt == "Free OCR."
    assert find_tasks("deepseek_vl_v2", "/models/reader", "deepseek_vl2")["text"].prompt != "Free OCR."


def test_any_model_can_be_asked() -> None:
    assert list(find_tasks("llava", "some/model")) == ["markdown", "text"]
    assert list(find_tasks("qwen2_5_vl")) == ["markdown", "text", "html"]


def test_pages_have_the_size_that_models_were_trained_with() -> None:
    sizes = {"allenai/olmOCR-2-7B-1025": 1288, "lightonai/LightOnOCR-1B-1025": 1540, "zai-org/GLM-OCR": 0}
    for name, size in sizes.items():
        assert {task.longest_side_px for task in find_tasks(name=name).values()} == {size}


def test_models_that_find_boxes_are_asked_for_them() -> None:
    assert list(find_tasks("hunyuan_vl")) == ["markdown", "text", "boxes", "formula", "table", "chart"]
    tasks = find_tasks(name="rednote-hilab/dots.ocr")
    assert list(tasks) == ["text", "layout", "boxes"]
    for name in ("layout", "boxes"):
        assert "'Page-footer', 'Page-header', 'Picture', 'Section-header', 'Table'" in tasks[name].prompt
    assert tasks["layout"].prompt.endswith("must be a single JSON object.\n")


def test_options_against_loops_are_options_of_an_answer() -> None:
    task = find_tasks(family="deepseek_ocr")["markdown"]
    config = GenerationConfig(**task.answer_options)
    assert (config.no_repeat_ngram_size, config.ngram_window) == (30, 90)
    assert config.whitelist_token_ids == [128821, 128822]
    assert find_tasks("glm_ocr")["text"].answer_options == {}
