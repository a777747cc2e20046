"""What every chat template does: messages in, a `RenderedPrompt` out, with media and literals by character offset.

The two kinds, a checkpoint's jinja and LMDeploy-style pieces, are in `jinja.py` and `pieces.py`. Knows nothing about
pixels or token ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.templates.sandbox import MAX_CHARS
from seesay.templates.shield import Shield
from seesay.values import MediaPart, Message, Modality, RenderedPrompt, TextPart

Markers = Mapping[Modality, str]

MAX_INPUT_CHARS = MAX_CHARS // 2  # leaves a template room for its own


class PromptTokenizer(Protocol):
    """The part of a tokenizer that templates need."""

    @property
    def special_tokens(self) -> Sequence[str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def template_variables(self) -> Mapping[str, str]: ...


class ChatTemplate(ABC):
    """TowerPacer a conversation into the text a model was trained on.

    `meta_instruction` (the system message of conversations that bring none) and `stop_words` may be set at any time
    and hold from the next request on.
    """

    name: str
    meta_instruction: str | None
    stop_words: list[str]
    _special_tokens: tuple[str, ...]

    def __repr__(self) -> str:
        system = f", meta_instruction={self.meta_instruction!r}" if self.meta_instruction is not None else ""
        return f"{type(self).__name__}({self.name!r}{system}, stop_words={self.stop_words!r})"

    @abstractmethod
    def _render_text(
        self,
        messages: Sequence[Message],
        *,
        shield: Shield,
        markers: Markers,
        add_generation_prompt: bool,
        continue_final: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> str:
        """The prompt with every user text still shielded."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        markers: Markers | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> RenderedPrompt:
        """The prompt of a conversation.

        markers: the family's marker text per modality; a part of a modality that is not in it is refused.
        add_generation_prompt: end with the beginning of the assistant's answer.
        continue_final: the last message is the beginning of the answer, and is left open (no generation prompt).
        template_options: variables for a jinja template.

        Raises RequestError for a conversation that the template cannot express.
        """
        markers = {} if markers is None else markers
        if not messages:
            fail("the conversation is empty: give it at least one message")
        for part in _media_of(messages):
            if part.modality not in markers:
                known = ", ".join(m.value for m in markers) or "text only"
                fail(f"this model takes no {part.modality.value} input (it takes: {known})")
        shield = Shield((*self._special_tokens, *markers.values()))
        texts = list(_texts_in([(m.role, m.parts, m.extra) for m in messages] + [tools, template_options]))
        if (num_chars := sum(map(len, texts))) > MAX_INPUT_CHARS:
            raise RequestError(
                ErrorCode.CONTEXT_TOO_LONG,
                f"the conversation has {num_chars} characters; at most {MAX_INPUT_CHARS} are taken",
                "messages",
            )
        shield.choose_nonces(texts)
        text = self._render_text(
            messages,
            shield=shield,
            markers=markers,
            add_generation_prompt=add_generation_prompt and not continue_final,
            continue_final=continue_final,
            tools=tools,
            options=template_options,
        )
        return locate(text, list(_media_of(messages)), markers=markers, shield=shield)


def fail(message: str, param: str = "messages") -> NoReturn:
    """Raise the RequestError of a conversation that cannot be rendered."""
    raise RequestError(ErrorCode.INVALID_REQUEST, message, param)


def _media_of(messages: Sequence[Message]) -> Iterator[MediaPart]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, MediaPart):
                yield part


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, TextPart):
        yield value.text
    elif isinstance(value, Mapping):
        yield from _texts_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def locate(shielded: str, media: Sequence[MediaPart], *, markers: Markers, shield: Shield) -> RenderedPrompt:
    """Find the markers that a template wrote, and give user text its shape back.

    The i-th marker with a text stands for the i-th item with that marker; `media` of the result is in text order,
    which is not the order of the parts when a template puts all pictures first.
    """
    waiting: dict[str, list[MediaPart]] = {}
    for part in media:
        waiting.setdefault(markers[part.modality], []).append(part)
    # Only modalities in use: a template's own text may well contain the marker of another.
    shielded = shield.restore_escapes(shielded)
    found = shield.find_open(shielded, tuple(waiting))
    placed: list[MediaPart] = []
    for start, stop in found:
        queue = waiting[shielded[start:stop]]
        if queue:
            placed.append(queue.pop(0))
        else:
            marker = shielded[start:stop]
            raise CheckpointError(f"the chat template wrote the marker {marker!r} more often than there are media")
    missing = [part for queue in waiting.values() for part in queue]
    if missing:
        fail(
            f"the chat template has no place for {len(missing)} of {len(media)} media "
            f"({missing[0].modality.value}, in this role or position); put them into a user message, "
            "or choose another template with chat_template_config"
        )
    text, spans, literals = shield.lift(shielded, found)
    return RenderedPrompt(text=text, media=tuple(placed), markers=spans, literals=literals)


def flatten(message: Message, *, markers: Markers, shield: Shield) -> str:
    """A message's parts as one string, for templates that take no lists.

    Media at the beginning get a line of their own each, as LLaVA and InternVL were trained; elsewhere they stand in
    the text exactly where the user put them. Two texts in a row are separated by a line break.
    """
    pieces: list[str] = []
    is_leading = True
    previous: TextPart | MediaPart | None = None
    for part in message.parts:
        if isinstance(part, MediaPart):
            pieces.append(markers[part.modality] + ("\n" if is_leading else ""))
        else:
            text = part.text
            if is_leading and pieces and text.startswith("\n"):
                text = text[1:]
            if isinstance(previous, TextPart):
                pieces.append("\n")
            pieces.append(shield.cover(text))
            is_leading = False
        previous = part
    return "".join(pieces)
