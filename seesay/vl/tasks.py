"""The prompts with which models read pages, by kind of model: those that were trained for it answer to these alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How a model is asked to do something with a page.

    The other fields are options of the answer that keep the model out of loops, as published.
    """

    prompt: str
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
        tasks={"text": Task(prompt="Extract the text content from this image.")},
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
                "is_rotation_valid, rotation_correction, is_table, and is_diagram parameters."
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
