"""The common part of all chat templates: turn messages into a `RenderedPrompt`, with media and literals by offset.

The two kinds, a checkpoint's jinja and LMDeploy-style pieces, are in `jinja.py` and `pieces.py`. Templates do not
handle pixels or token ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from seesay.errors import ErrorCode, RequestError
from seesay.templates.sandbox import MAX_CHARS
from seesay.templates.shield import Shield
from seesay.values import MediaPart, Message, Modality, RenderedPrompt, TextPart

Markers = Mapping[Modality, str]

MAX_INPUT_CHARS = MAX_CHARS // 2  # leaves room for the template's own text


class PromptTokenizer(Protocol):
    """The methods of a tokenizer that templates use."""

    @property
    def special_tokens(self) -> Sequence[str]: ...
    @property
    def chat_template(self) -> str | Mapping[str, str] | None: ...
    @property
    def template_variables(self) -> Mapping[str, str]: ...


class ChatTemplate(ABC):
    """Render a conversation into the text format that a model was trained on.

    meta_instruction: the system message of conversations without one. It and `stop_words` may be set at any time; new
    values apply from the next request.
    """

    name: str
    meta_instruction: str | None
    stop_words: list[str]
    _special_tokens: tuple[str, ...]

    def __repr__(self) -> str:
        system = f", meta_instruction={self.meta_instruction!r}" if self.meta_instruction is not None else ""
        return f"{type(self).__name__}({self.name!r}{system}, stop_words={self.stop_words!r})"

    @property
    def writes_tools(self) -> bool:
        """Whether the template renders the tools of a request."""
        return False

    @property
    def sources(self) -> tuple[str, ...]:
        """The jinja sources of the templates that this one consists of; none for a template of pieces."""
        return ()

    @abstractmethod
    def _render_text(
        self,
        messages: Sequence[Message],
        *,
        shield: Shield,
        markers: Markers,
        add_generation_prompt: bool,
        continue_final: bool,
        tools: Sequence[Mapping[str, object]] | None,
        options: Mapping[str, object],
    ) -> str:
        """Render the prompt. All texts of the user are still shielded."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        markers: Markers | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **template_options: object,
    ) -> RenderedPrompt:
        """Render the prompt of a conversation.

        markers: the family's marker text per modality. Parts of other modalities are refused.
        add_generation_prompt: end with the beginning of the assistant's answer.
        continue_final: the last message is the beginning of the answer, and stays open (no generation prompt).
        template_options: variables for a jinja template.

        Raises RequestError for a conversation that the template cannot express.
        """
        markers = {} if markers is None else markers
        if not messages:
            fail("the conversation must have at least one message")
        _check_modalities(messages, markers)
        texts = [text for message in messages for text in _texts_of(message)]
        texts += [*_texts_in(tools), *_texts_in(template_options)]
        if (num_chars := sum(map(len, texts))) > MAX_INPUT_CHARS:
            raise RequestError(
                ErrorCode.CONTEXT_TOO_LONG,
                f"the conversation has {num_chars} characters; at most {MAX_INPUT_CHARS} are allowed",
                "messages",
            )
        shield = Shield((*self._special_tokens, *markers.values()))
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
    """Raise a RequestError for a conversation that cannot be rendered."""
    raise RequestError(ErrorCode.INVALID_REQUEST, message, param)


def _check_modalities(messages: Sequence[Message], markers: Markers) -> None:
    for part in _media_of(messages):
        if part.modality not in markers:
            known = ", ".join(m.value for m in markers) or "text only"
            fail(f"this model takes no {part.modality.value} input (it takes: {known})")


def _media_of(messages: Sequence[Message]) -> Iterator[MediaPart]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, MediaPart):
                yield part


def _texts_of(message: Message) -> Iterator[str]:
    """Yield the texts of a message that its sender wrote."""
    yield message.role
    yield from (part.text for part in message.parts if isinstance(part, TextPart))
    yield from _texts_in(message.extra)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def locate(shielded: str, media: Sequence[MediaPart], *, markers: Markers, shield: Shield) -> RenderedPrompt:
    """Find the markers that a template wrote, and remove the shield from user text.

    The i-th marker of a modality stands for the i-th item of that modality. `media` of the result is in text order,
    which differs from the order of the parts if a template puts all pictures first.
    """
    waiting: dict[str, list[MediaPart]] = {}
    for part in media:
        waiting.setdefault(markers[part.modality], []).append(part)
    # Search for the modalities in use only: a template's own text may contain the marker of another one.
    shielded = shield.restore_escapes(shielded)
    found = shield.find_open(shielded, tuple(waiting))
    _check_counts(Counter(shielded[start:stop] for start, stop in found), waiting, num_media=len(media))
    placed = [waiting[shielded[start:stop]].pop(0) for start, stop in found]
    text, spans, literals = shield.lift(shielded, found)
    return RenderedPrompt(text=text, media=tuple(placed), markers=spans, literals=literals)


def _check_counts(written: Mapping[str, int], given: Mapping[str, Sequence[MediaPart]], *, num_media: int) -> None:
    """Raise RequestError if a marker was not written once for each medium. Both arguments have markers as keys."""
    for marker, parts in given.items():
        if written[marker] > len(parts):
            fail(
                f"the chat template wrote the marker {marker!r} {written[marker]} times for {len(parts)} "
                f"{parts[0].modality.value}(s); choose another template with chat_template_config"
            )
    if missing := [part for marker, parts in given.items() for part in parts[written[marker] :]]:
        fail(
            f"the chat template has no place for {len(missing)} of {num_media} media "
            f"({missing[0].modality.value}, in this role or position); put them into a user message, "
            "or choose another template with chat_template_config"
        )


def flatten(
    message: Message, *, write_media: Callable[[MediaPart], str], shield: Shield, after_media: str = "\n"
) -> str:
    """Join a message's parts into one string, for templates that do not accept lists. write_media: the text of a
    picture or video, in which its marker is; asked for each once, in their order.

    Each picture or video at the beginning is followed by `after_media`, which is a line break in the training of LLaVA
    and InternVL. All others, and those that the user placed, stay where they are. A line break separates two texts in a
    row.
    """
    pieces: list[str] = []
    is_leading = True
    previous: TextPart | MediaPart | None = None
    for part in message.parts:
        if isinstance(part, MediaPart):
            pieces.append(write_media(part) + (after_media if is_leading and not part.is_placed else ""))
        else:
            text = part.text
            if is_leading and pieces and after_media and pieces[-1].endswith(after_media):
                text = text.removeprefix(after_media)
            if isinstance(previous, TextPart):
                pieces.append("\n")
            pieces.append(shield.cover(text))
            is_leading = False
        previous = part
    return "".join(pieces)
