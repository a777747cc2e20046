"""The page: its layout, and which control does what. The only module that builds Gradio components."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from seesay.serving.client import APIClient
from seesay.ui.chat import Conversation, Settings
from seesay.ui.conversation import Turn
from seesay.ui.escaping import escape_answer, escape_question, unescape

FOLDER = Path(__file__).parent
EXAMPLES_FOLDER = FOLDER / "examples"
STYLE_FILE = FOLDER / "style.css"
SCRIPT_FILE = FOLDER / "page.js"

_EXAMPLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Describe this image.", "shapes.png", ("shapes.png",)),
    ("Which bar is the largest?", "chart.png", ("chart.png",)),
    ("Which picture shows more shapes?", "first.png", ("first.png", "second.png")),
    ("Which direction does the object go?", "motion.png", ("motion.mp4",)),
)
_FONT = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Consolas", "Liberation Mono", "monospace")
_WAITING = '<span class="seesay-wait" role="status" aria-label="The answer is coming"><i></i><i></i><i></i></span>'
_KEPT_S = 24 * 3600


def make_theme() -> Any:
    """Gradio's plain theme in our colours, with the system's fonts: nothing is fetched."""
    return gr.themes.Base(primary_hue="indigo", neutral_hue="zinc", radius_size="lg", font=_FONT, font_mono=_MONO).set(
        body_background_fill="white",
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        body_background_fill_dark="*neutral_900",
        background_fill_secondary="*neutral_100",
        background_fill_secondary_dark="*neutral_800",
        button_primary_background_fill="*primary_600",
        button_primary_text_color="white",
    )


def build_page(client: APIClient, models: Sequence[str]) -> gr.Blocks:
    """The page for a server with `models` (names, at least one)."""
    page: gr.Blocks
    with gr.Blocks(
        title=f"seesay · {models[0]}", analytics_enabled=False, fill_height=True, delete_cache=(600, _KEPT_S)
    ) as page:
        conversation = gr.State(Conversation())
        with gr.Row(elem_id="top"):
            name = "" if len(models) > 1 else models[0]
            gr.HTML(
                f'<div class="seesay-title"><b>seesay</b><span title="{escape(name)}">{escape(name)}</span></div>',
                elem_id="title",
            )
            camera_button = gr.Button("Camera", size="sm", elem_id="camera-button")
            settings_button = gr.Button("Settings", size="sm", elem_id="settings-button")
        controls = _build_settings(models)
        chat = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            height="100%",
            min_height=200,
            layout="bubble",
            editable="user",
            buttons=["copy"],
            feedback_options=None,
            placeholder="### Ask about pictures\nDrop, paste or photograph them, or begin with one of these.",
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
            placeholder="Ask, or drop pictures here",
            file_count="multiple",
            file_types=["image", "video"],
            sources=["upload"],
            max_lines=8,
            autofocus=True,
            max_plain_text_length=100_000,
        )
        _connect(
            client, conversation=conversation, chat=chat, box=box, camera=camera, camera_button=camera_button,
            settings_button=settings_button, controls=controls,
        )  # fmt: skip
    return page


class _Controls:
    """The settings: `panel` holds them, `inputs` in the order of `read`."""

    def __init__(self, panel: gr.Column, inputs: list[Any]) -> None:
        self.panel = panel
        self.inputs = inputs

    @staticmethod
    def read(values: Sequence[Any]) -> Settings:
        model, system_prompt, temperature, top_p, top_k, max_tokens = values
        return Settings(
            model=model, system_prompt=system_prompt or "", temperature=temperature, top_p=top_p, top_k=top_k,
            max_tokens=max_tokens,
        )  # fmt: skip


def _build_settings(models: Sequence[str]) -> _Controls:
    default = Settings(model=models[0])
    with gr.Column(visible=False, elem_id="settings") as panel:
        model = gr.Dropdown(
            list(models), value=models[0], label="Model", visible=len(models) > 1, elem_id="model", interactive=True
        )
        system_prompt = gr.Textbox(
            label="System prompt", placeholder="What the model should know or mind in every answer", lines=2,
            max_lines=6, elem_id="system-prompt",
        )  # fmt: skip
        with gr.Row():
            temperature = gr.Slider(0, 2, default.temperature, step=0.05, label="Temperature", elem_id="temperature")
            top_p = gr.Slider(0.05, 1, default.top_p, step=0.05, label="Top-p", elem_id="top-p")
        with gr.Row():
            top_k = gr.Slider(0, 200, default.top_k, step=1, label="Top-k (0: off)", elem_id="top-k")
            max_tokens = gr.Slider(1, 8192, default.max_tokens, step=1, label="Max tokens", elem_id="max-tokens")
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


# --- what is shown ----------------------------------------------------------------------------------------------------


def show(turns: Sequence[Turn]) -> list[Any]:
    """The chat's messages: two for each turn, so that message i belongs to turn i // 2."""
    messages = []
    for turn in turns:
        files = [{"path": path} for path in turn.files]
        # Gradio takes an edited text only from a question that begins and ends with one; style.css hides the last.
        text = escape_question(turn.text)
        question: list[Any] = [text, *files, ""] if text and files else files or [text]
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": _show_answer(turn)})
    return messages


def _show_answer(turn: Turn) -> list[Any]:
    if turn.error is not None:
        return [gr.HTML(f'<div class="seesay-error" role="alert">{escape(turn.error)}</div>')]
    if not turn.answer and not turn.is_done:
        return [gr.HTML(_WAITING)]
    below = (f'<div class="seesay-note">{escape(turn.note)}</div>' if turn.note else "") + turn.details
    return [*([escape_answer(turn.answer)] if turn.answer else []), *([gr.HTML(below)] if below else [])]


def _turn_index(data: Any) -> int:
    """The turn that a message of the chat belongs to."""
    index = data.index[0] if isinstance(data.index, (tuple, list)) else data.index
    return int(index) // 2


# --- what the controls do ---------------------------------------------------------------------------------------------


def _connect(
    client: APIClient,
    *,
    conversation: gr.State,
    chat: gr.Chatbot,
    box: gr.MultimodalTextbox,
    camera: gr.Image,
    camera_button: gr.Button,
    settings_button: gr.Button,
    controls: _Controls,
) -> None:
    def answer(talk: Conversation, values: Sequence[Any], text: str, files: Sequence[str]) -> Iterator[Any]:
        is_first = True
        for _ in talk.ask(client, _Controls.read(values), text=text, files=files):
            busy = gr.update(submit_btn=False, stop_btn=True) if is_first else gr.skip()
            is_first = False
            yield show(talk.turns), busy if talk.is_busy else gr.update(submit_btn=True, stop_btn=False)

    def submit(value: dict[str, Any] | None, talk: Conversation, *values: Any) -> Iterator[Any]:
        text, files = (value or {}).get("text") or "", (value or {}).get("files") or []
        if text.strip() or files:
            is_first = True
            for messages, update in answer(talk, values, text, files):
                yield messages, {**update, "value": None} if is_first else update
                is_first = False
        else:
            yield gr.skip(), gr.skip()

    def retry(talk: Conversation, data: gr.RetryData, *values: Any) -> Iterator[Any]:
        turn = talk.undo(_turn_index(data))
        if turn is not None:
            yield from answer(talk, values, turn.text, turn.files)

    def edit(talk: Conversation, data: gr.EditData, *values: Any) -> Iterator[Any]:
        turn = talk.undo(_turn_index(data))
        if turn is not None:
            yield from answer(talk, values, unescape(str(data.value)), turn.files)

    def choose_example(talk: Conversation, data: gr.SelectData, *values: Any) -> Iterator[Any]:
        text, _, files = _EXAMPLES[int(data.index) % len(_EXAMPLES)]
        yield from answer(talk, values, text, [str(EXAMPLES_FOLDER / file) for file in files])

    def undo(talk: Conversation, data: gr.UndoData) -> Any:
        turn = talk.undo(_turn_index(data))
        value = gr.skip() if turn is None else {"text": turn.text, "files": list(turn.files)}
        return show(talk.turns), gr.update(value=value, submit_btn=True, stop_btn=False)

    def clear(talk: Conversation) -> Any:
        talk.clear()
        return gr.update(submit_btn=True, stop_btn=False)

    def add_photo(path: str | None, value: dict[str, Any] | None) -> Any:
        if path is None:
            return gr.skip(), gr.skip(), gr.skip()
        files = [*((value or {}).get("files") or []), path]
        added = {"text": (value or {}).get("text") or "", "files": files}
        return gr.update(value=added), gr.update(value=None, visible=False), False

    inputs = [conversation, *controls.inputs]
    _on(box.submit, submit, [box, *inputs], [chat, box])
    _on(chat.retry, retry, inputs, [chat, box])
    _on(chat.edit, edit, inputs, [chat, box])
    _on(chat.example_select, choose_example, inputs, [chat, box])
    _on(chat.undo, undo, [conversation], [chat, box])
    _on(chat.clear, clear, [conversation], [box])
    _on(box.stop, lambda talk: talk.stop(), [conversation], None)
    is_camera_open = gr.State(False)
    is_settings_open = gr.State(False)
    _on(camera_button.click, _toggle, [is_camera_open], [is_camera_open, camera])
    _on(settings_button.click, _toggle, [is_settings_open], [is_settings_open, controls.panel])
    _on(camera.input, add_photo, [camera, box], [box, camera, is_camera_open])


def _toggle(is_open: bool) -> Any:
    return not is_open, gr.update(visible=not is_open)


def _on(event: Callable[..., Any], handler: Callable[..., Any], inputs: list[Any], outputs: list[Any] | None) -> None:
    """Each visitor's events run at once, without Gradio's spinners, and are no API."""
    event(handler, inputs, outputs, show_progress="hidden", concurrency_limit=None, api_visibility="private")
