"""The page: its layout, and the handlers of its controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from seesay.ui import live
from seesay.ui.chat import Conversation, Settings
from seesay.ui.download import build_download
from seesay.ui.handlers import (
    FindClient,
    Handlers,
    add_photo,
    begin_another,
    clear_chat,
    end_answer,
    make_title,
    stop_answer,
    undo_turn,
)
from seesay.ui.history import build_history
from seesay.ui.timeline import STYLE_FILE as TIMELINE_STYLE_FILE
from seesay.ui.uploads import make_uploads

FOLDER = Path(__file__).parent
EXAMPLES_FOLDER = FOLDER / "examples"
FAVICON_FILE = FOLDER / "favicon.svg"
STYLE_FILES = (FOLDER / "style.css", TIMELINE_STYLE_FILE, live.STYLE_FILE)
SCRIPT_FILES = tuple(FOLDER / name for name in ("theme.js", "page.js", "chat.js", "frames.js", "marks.js", "live.js"))

_EXAMPLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Describe this image.", "shapes.png", ("shapes.png",)),
    ("Which bar is the largest?", "chart.png", ("chart.png",)),
    ("Which picture shows more shapes?", "first.png", ("first.png", "second.png")),
    ("Which direction does the object go?", "motion.png", ("motion.mp4",)),
)
_FONT = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Consolas", "Liberation Mono", "monospace")
_KEPT_S = 24 * 3600
_THEME_SWITCH = '<fieldset class="seesay-theme"><legend>Theme</legend>{}</fieldset>'.format(
    "".join(
        f'<label><input type="radio" name="seesay-theme" value="{name.lower()}"><span>{name}</span></label>'
        for name in ("System", "Light", "Dark")
    )
)
_SIGN_OUT = (
    '<form method="post" action="logout" onsubmit="document.dispatchEvent(new Event(\'seesay:sign-out\'))">'
    '<button class="seesay-sign-out">Sign out</button></form>'
)
_TELL_THEME = "document.dispatchEvent(new Event('seesay:theme'));"
_TELL_NEW = "(...values) => { document.dispatchEvent(new Event('seesay:new')); return values; }"


def make_theme() -> Any:
    """Return Gradio's plain theme with our colors and the system's fonts, so that no fonts are downloaded."""
    return gr.themes.Base(primary_hue="indigo", neutral_hue="zinc", radius_size="lg", font=_FONT, font_mono=_MONO).set(
        body_background_fill="white",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        input_placeholder_color="*neutral_600",
        input_placeholder_color_dark="*neutral_400",
        body_background_fill_dark="*neutral_900",
        background_fill_secondary="*neutral_100",
        background_fill_secondary_dark="*neutral_800",
        button_primary_background_fill="*primary_600",
        button_primary_text_color="white",
    )


def build_page(find_client: FindClient, models: Sequence[str] | None, *, has_live: bool = True) -> gr.Blocks:
    """Build the page for a server with the models named `models` (at least one). None: for visitors who sign in, and
    then see the models. has_live: whether the server takes live video."""
    has_login, models = models is None, models or ()
    page: gr.Blocks
    with gr.Blocks(
        title=" · ".join(["seesay", *models[:1]]),
        analytics_enabled=False,
        fill_height=True,
        delete_cache=(600, _KEPT_S),
    ) as page:
        with gr.Row(elem_id="top"):
            history = build_history()
            download = build_download()
            title = gr.HTML(make_title(models), elem_id="title")
            new_button = gr.Button("New", size="sm", elem_id="new-button")
            live_button = gr.Button("Live", size="sm", elem_id="live-button", visible=has_live)
            camera_button = gr.Button("Camera", size="sm", elem_id="camera-button")
            settings_button = gr.Button("Settings", size="sm", elem_id="settings-button")
        controls = _build_settings(models, has_login=has_login)
        live_panel = gr.HTML(live.PANEL, visible=False, elem_id="live", apply_default_css=False)
        chat = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            height="100%",
            min_height=200,
            layout="bubble",
            editable="user",
            buttons=["copy"],
            autoscroll=False,  # chat.js does
            feedback_options=None,
            placeholder="## Ask about pictures\nDrop, paste or photograph them, or start with one of these.",
            examples=_make_examples(),
            allow_tags=False,
        )
        camera = gr.Image(
            elem_id="camera",
            sources=["webcam"],
            type="filepath",
            format="png",
            visible=False,
            show_label=False,
            height=320,
        )
        box = gr.MultimodalTextbox(
            elem_id="box",
            show_label=False,
            placeholder="Ask, or drop pictures, audio or a PDF here",
            file_count="multiple",
            file_types=["image", "video", "audio", ".pdf"],
            sources=["upload"],
            max_lines=8,
            autofocus=True,
            max_plain_text_length=100_000,
        )
        uploads = make_uploads(EXAMPLES_FOLDER, on_write=page.upload_file_set.add)
        handlers = Handlers(
            find_client, controls.read, examples=_EXAMPLES, examples_folder=EXAMPLES_FOLDER, uploads=uploads
        )
        _connect(
            handlers, chat=chat, box=box, history=history, download=download, new_button=new_button, camera=camera,
            camera_button=camera_button, controls=controls,
        )  # fmt: skip
        _connect_panel(live_button, live_panel)
        _connect_panel(settings_button, controls.panel)
        if has_login:
            _on(page.load, handlers.load, [], [title, controls.model])
    return page


class _Controls:
    """The settings: `panel` contains them, `inputs` are in the order of the arguments of `read`."""

    def __init__(self, panel: gr.Column, inputs: list[Any]) -> None:
        self.panel = panel
        self.inputs = inputs
        self.model, self.system_prompt = inputs[:2]

    @staticmethod
    def read(values: Sequence[Any]) -> Settings:
        model, system_prompt, temperature, top_p, top_k, max_tokens = values
        return Settings(
            model=model, system_prompt=system_prompt or "", temperature=temperature, top_p=top_p, top_k=top_k,
            max_tokens=max_tokens,
        )  # fmt: skip


def _build_settings(models: Sequence[str], *, has_login: bool) -> _Controls:
    default = Settings(model=models[0] if models else "")
    with gr.Column(visible=False, elem_id="settings") as panel:
        gr.HTML(_THEME_SWITCH, js_on_load=_TELL_THEME, elem_id="theme", apply_default_css=False)
        model = gr.Dropdown(
            list(models),
            value=default.model or None,
            label="Model",
            visible=len(models) > 1,
            elem_id="model",
            interactive=True,
        )
        system_prompt = gr.Textbox(
            label="System prompt", placeholder="Instructions for every answer", lines=2,
            max_lines=6, elem_id="system-prompt",
        )  # fmt: skip
        with gr.Row():
            temperature = gr.Slider(0, 2, default.temperature, step=0.05, label="Temperature", elem_id="temperature")
            top_p = gr.Slider(0.05, 1, default.top_p, step=0.05, label="Top-p", elem_id="top-p")
        with gr.Row():
            top_k = gr.Slider(0, 200, default.top_k, step=1, label="Top-k (0: off)", elem_id="top-k")
            max_tokens = gr.Slider(1, 8192, default.max_tokens, step=1, label="Max tokens", elem_id="max-tokens")
        if has_login:
            gr.HTML(_SIGN_OUT, elem_id="sign-out")
    return _Controls(panel, [model, system_prompt, temperature, top_p, top_k, max_tokens])


def _make_examples() -> list[Any]:
    return [
        {
            "text": text,
            "icon": str(EXAMPLES_FOLDER / icon),
            "files": [str(EXAMPLES_FOLDER / file) for file in files],
        }
        for text, icon, files in _EXAMPLES
    ]


# --- events -----------------------------------------------------------------------------------------------------------


def _connect(
    handlers: Handlers,
    *,
    chat: gr.Chatbot,
    box: gr.MultimodalTextbox,
    history: gr.HTML,
    download: gr.HTML,
    new_button: gr.Button,
    camera: gr.Image,
    camera_button: gr.Button,
    controls: _Controls,
) -> None:
    conversation = gr.State(Conversation())
    inputs = [conversation, *controls.inputs]
    shown = [chat, box, history]
    answers = [
        _on(box.submit, handlers.submit, [box, *inputs], shown),
        _on(chat.retry, handlers.retry, inputs, shown),
        _on(chat.edit, handlers.edit, inputs, shown),
        _on(chat.example_select, handlers.choose_example, inputs, shown),
    ]
    for answer in answers:
        _on(answer.then, end_answer, [conversation], [box])
    _on(chat.undo, undo_turn, [conversation], shown)
    _on(chat.clear, clear_chat, [conversation], shown)
    _on(new_button.click, begin_another, [conversation], [chat, box], js=_TELL_NEW)
    _on(history.select, handlers.restore, [conversation], [*shown, controls.system_prompt])
    _on(download.select, handlers.export, inputs, [download])
    _on(box.stop, stop_answer, [conversation], None)
    is_camera_open = gr.State(False)
    _on(camera_button.click, _toggle, [is_camera_open], [is_camera_open, camera])
    _on(camera.input, add_photo, [camera, box], [box, camera, is_camera_open])


def _connect_panel(button: gr.Button, panel: Any) -> None:
    """Let a button open and close a panel."""
    is_open = gr.State(False)
    _on(button.click, _toggle, [is_open], [is_open, panel])


def _toggle(is_open: bool) -> Any:
    return not is_open, gr.update(visible=not is_open)


def _on(
    event: Callable[..., object],
    handler: Callable[..., object],
    inputs: list[Any],
    outputs: list[Any] | None,
    *,
    js: str | None = None,
) -> Any:
    """Connect an event to a handler: without queueing behind other visitors, spinners, or an API endpoint. `js` runs in
    the browser first. Returns the event, whose `then` is another one."""
    return event(
        handler, inputs, outputs, js=js, show_progress="hidden", concurrency_limit=None, api_visibility="private"
    )
