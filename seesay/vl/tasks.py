"""The prompts with which models read pages, by kind of model: those that were trained for it answer to these alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How a model is asked to do something with a page. Without a `prompt` it gets the page alone.

    longest_side_px: of the pages that it was trained with, to which larger ones are shrunk; 0: of any size.
    The other fields are options of the answer that keep the model out of loops, as published.
    """

    prompt: str
    longest_side_px: int = 0
    no_repeat_ngram_size: int = 0
    ngram_window: int = 0
    whitelist_token_ids: tuple[int, ...] = ()

    @property
    def answer_options(self) -> dict[str, Any]:
        """The options of the answer that are not their defaults, as fields of a request and of `GenerationConfig`."""
        if not self.no_repeat_ngram_size:
            return {}
        return {
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "ngram_window": self.ngram_window,
            "whitelist_token_ids": list(self.whitelist_token_ids),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of model: of this family, of these types, or with the pattern `name` in its name (lower case)."""

    tasks: Mapping[str, Task]
    family: str = ""
    types: tuple[str, ...] = ()
    name: str = ""


def _deepseek(prompt: str) -> Task:
    """A task of DeepSeek-OCR. The tokens that may repeat are <td> and </td>."""
    return Task(prompt=prompt, no_repeat_ngram_size=30, ngram_window=90, whitelist_token_ids=(128821, 128822))


_DOTS_CATEGORIES = (
    "['Caption', 'Footnote', 'Formula', 'List-item', 'Page-footer', 'Page-header', 'Picture', 'Section-header', "
    "'Table', 'Text', 'Title']"
)
_ANY = {
    "markdown": Task(
        prompt="Transcribe all text of this page in reading order, as Markdown. Answer with the text of the page alone."
    ),
    "text": Task(prompt="Transcribe all text of this page in reading order. Answer with the text of the page alone."),
}
_KINDS = (
    _Kind(
        family="deepseek_ocr",  # the authors' layout has the type of DeepSeek-VL2
        name=r"deepseek-?ocr",
        tasks={
            "markdown": _deepseek("<|grounding|>Convert the document to markdown."),
            "text": _deepseek("Free OCR."),
            "figure": _deepseek("Parse the figure."),
        },
    ),
    _Kind(
        types=("glm_ocr",),
        name=r"glm-?ocr",
        tasks={
            "text": Task(prompt="Text Recognition:"),
            "formula": Task(prompt="Formula Recognition:"),
            "table": Task(prompt="Table Recognition:"),
        },
    ),
    _Kind(
        types=("paddleocr_vl",),
        name=r"paddleocr-?vl",
        tasks={
            "text": Task(prompt="OCR:"),
            "formula": Task(prompt="Formula Recognition:"),
            "table": Task(prompt="Table Recognition:"),
            "chart": Task(prompt="Chart Recognition:"),
        },
    ),
    _Kind(
        types=("dots_ocr",),
        name=r"dots\.?ocr",
        tasks={
            "text": Task(prompt="Extract the text content from this image."),
            "layout": Task(
                prompt="Please output the layout information from the PDF image, including each layout element's bbox, "
                "its category, and the corresponding text content within the bbox.\n\n1. Bbox format: [x1, y1, x2, "
                f"y2]\n\n2. Layout Categories: The possible categories are {_DOTS_CATEGORIES}.\n\n3. Text Extraction & "
                "Formatting Rules:\n    - Picture: For the 'Picture' category, the text field should be omitted.\n    "
                "- Formula: Format its text as LaTeX.\n    - Table: Format its text as HTML.\n    - All Others (Text, "
                "Title, etc.): Format their text as Markdown.\n\n4. Constraints:\n    - The output text must be the "
                "original text from the image, with no translation.\n    - All layout elements must be sorted "
                "according to human reading order.\n\n5. Final Output: The entire output must be a single JSON "
                "object.\n"
            ),
            "boxes": Task(
                prompt="Please output the layout information from this PDF image, including each layout's bbox and its "
                "category. The bbox should be in the format [x1, y1, x2, y2]. The layout categories for the PDF "
                f"document include {_DOTS_CATEGORIES}. Do not output the corresponding text. The layout result should "
                "be in JSON format."
            ),
        },
    ),
    _Kind(
        types=("hunyuan_vl",),
        name=r"hunyuan-?ocr",
        tasks={
            "markdown": Task(
                prompt="Extract all information from the main body of the document image and represent it in markdown "
                "format, ignoring headers and footers. Tables should be expressed in HTML format, formulas in the "
                "document should be represented using LaTeX format, and the parsing should be organized according to "
                "the reading order."
            ),
            "text": Task(prompt="Extract the text in the image."),
            "boxes": Task(
                prompt="Detect and recognize text in the image, and output the text coordinates in a formatted manner."
            ),
            "formula": Task(prompt="Identify the formula in the image and represent it using LaTeX format."),
            "table": Task(prompt="Parse the table in the image into HTML."),
            "chart": Task(
                prompt="Parse the chart in the image; use Mermaid format for flowcharts and Markdown for other charts."
            ),
        },
    ),
    _Kind(
        types=("lighton_ocr",),
        name=r"lightonocr",
        tasks={"markdown": Task(prompt="", longest_side_px=1540)},
    ),
    _Kind(
        name="olmocr",  # whose type is that of Qwen2-VL or Qwen2.5-VL
        tasks={
            "markdown": Task(
                prompt="Attached is one page of a document that you must process. Just return the plain text "
                "representation of this document as if you were reading it naturally. Convert equations to LateX and "
                "tables to HTML.\nIf there are any figures or charts, label them with the following markdown syntax "
                "![Alt text describing the contents of the figure](page_startx_starty_width_height.png)\nReturn your "
                "output as markdown, with a front matter section on top specifying values for the primary_language, "
                "is_rotation_valid, rotation_correction, is_table, and is_diagram parameters.",
                longest_side_px=1288,
            )
        },
    ),
    _Kind(
        types=("qwen2_5_vl",),
        tasks={**_ANY, "html": Task(prompt="QwenVL HTML")},
    ),
    _Kind(
        types=("qwen3_vl", "qwen3_vl_moe"),
        tasks={**_ANY, "html": Task(prompt="qwenvl html"), "layout": Task(prompt="qwenvl markdown")},
    ),
)


def find_tasks(model_type: str = "", name: str = "", family: str = "") -> Mapping[str, Task]:
    """Return the tasks of a model, by name, the one for whole pages first. model_type: of its config.json. name: its
    path, hub id or name on a server. family: the name of the one that runs it."""
    own = name.rstrip("/").rpartition("/")[2].lower()
    for kind in _KINDS:
        is_family = bool(family) and family == kind.family
        if is_family or model_type in kind.types or (kind.name and re.search(kind.name, own)):
            return kind.tasks
    return _ANY
