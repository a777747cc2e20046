"""The list of past conversations. The visitor's browser stores them (history.js), not the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

_SCRIPT_FILE = Path(__file__).parent / "history.js"
_ICON = (
    '<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true" fill="none" stroke="currentColor" '
    'stroke-width="1.6" stroke-linecap="round"><path d="M3 5h14M3 10h14M3 15h14"/></svg>'
)
_TEMPLATE = f"""
<button type="button" class="seesay-open" aria-label="Conversations" title="Conversations" aria-haspopup="dialog">
{_ICON}</button>
<dialog class="seesay-drawer" aria-label="Conversations">
  <div class="seesay-drawer-top"><b>Conversations</b>
    <button type="button" class="seesay-close" aria-label="Close">\u2715</button></div>
  <ul class="seesay-list"></ul>
  <p class="seesay-none">Conversations that you have are listed here.</p>
  <div class="seesay-drawer-end"><span>Kept in this browser only.</span>
    <button type="button" class="seesay-import" title="A conversation that was exported as JSON">Import</button>
    <button type="button" class="seesay-delete-all">Delete all</button>
    <input type="file" accept=".json,application/json" aria-label="A conversation as JSON" hidden></div>
</dialog>
"""


def build_history() -> gr.HTML:
    """Build the button that opens the list. Its value is the last record for the browser to store (`make_record`); its
    `select` event returns a stored record, or the path of an uploaded file to import."""
    return gr.HTML(
        value=None, html_template=_TEMPLATE, js_on_load=_SCRIPT_FILE.read_text(), elem_id="history",
        apply_default_css=False,
    )  # fmt: skip


def record_of(data: Any) -> Any:
    """Return what the browser sent with a `select` event."""
    return data._data
