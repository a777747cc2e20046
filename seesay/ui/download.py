"""The dialog in which a visitor saves the conversation as a file. The server writes it, the browser saves it
(download.js)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from seesay.ui.thumbnails import make_address

_SCRIPT_FILE = Path(__file__).parent / "download.js"
_CHOICES = (
    ("markdown", "Markdown", "To read. With pictures and videos: a ZIP archive that has them, too."),
    ("json", "JSON", "The messages as OpenAI\u2019s API takes them, pictures included. Can be imported again."),
)
_BUTTONS = "".join(
    f'<button type="button" class="seesay-format" value="{name}"><b>{title}</b><span>{text}</span></button>'
    for name, title, text in _CHOICES
)
_TEMPLATE = f"""
<dialog class="seesay-confirm seesay-export" aria-label="Export this conversation">
  <p>Export this conversation</p>{_BUTTONS}
  <form method="dialog"><button>Cancel</button></form>
</dialog>
"""


def build_download() -> gr.HTML:
    """Build the dialog. Its `select` event returns the chosen format; its value is the file to save
    (`make_download`)."""
    return gr.HTML(
        value=None, html_template=_TEMPLATE, js_on_load=_SCRIPT_FILE.read_text(), elem_id="download",
        apply_default_css=False,
    )  # fmt: skip


def make_download(path: str) -> dict[str, Any]:
    """Return the value that makes the browser save a file of the uploads under its own name."""
    return {"address": make_address(path), "name": Path(path).name}
