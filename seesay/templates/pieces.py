"""LMDeploy-style templates: a conversation is joined from a few pieces, which users may change.

{system}{meta_instruction}{eosys}{user}{content}{eoh}{assistant}{content}{eoa}{separator}{user}…
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, NamedTuple

from seesay.config.checks import check_value
from seesay.templates.chat import ChatTemplate, Markers, fail, flatten
from seesay.templates.shield import Shield
from seesay.values import MediaPart, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The texts around the messages.

    start: the text before the first message.
    user: `{round}` in it stands for the number of the user's message in the conversation.
    user_before_media: replaces `user` in messages that begin with a picture or video; None: `user`.
    puts_media_first: the pictures and videos of a user's message come before its `user`, but for placed ones.
    opens_with_media: the only picture or video of a conversation comes before all of it, but for a placed one.
    media_wording: what each of several pictures and videos of a conversation becomes, but for placed ones: `{media}`
        stands for it, `{number}` for its number in the conversation. Empty: nothing is around them.
    gathers_media: all pictures and videos of the conversation come before `start`, unless one is placed.
    after_media: the text after each picture or video at the beginning of a message.
    is_completion: add no pieces; the prompt is the contents only.
    generation_prompt: the text before the answer; None: `assistant`.
    is_system_in_user: the system message starts the first user turn and replaces its `user` piece.
    """

    system: str = ""
    meta_instruction: str | None = None
    eosys: str = ""
    user: str = ""
    eoh: str = ""
    assistant: str = ""
    eoa: str = ""
    tool: str = ""
    eotool: str = ""
    separator: str = ""
    start: str = ""
    user_before_media: str | None = None
    puts_media_first: bool = False
    opens_with_media: bool = False
    media_wording: str = ""
    gathers_media: bool = False
    after_media: str = "\n"
    stop_words: tuple[str, ...] = ()
    is_completion: bool = False
    generation_prompt: str | None = None
    is_system_in_user: bool = False

    def with_changes(self, changes: Mapping[str, Any]) -> Pieces:
        """Return a copy with some pieces changed. A new `assistant` is also the new generation prompt."""
        changes = dict(changes)
        if "assistant" in changes:
            changes.setdefault("generation_prompt", None)
        if "stop_words" in changes:
            changes["stop_words"] = tuple(changes["stop_words"])
        return replace(self, **changes)


class _Turn(NamedTuple):
    """One message, its texts shielded. media: what comes before its first piece."""

    role: str
    content: str
    begins_with_media: bool = False
    media: str = ""


class PiecesTemplate(ChatTemplate):
    """A template made of pieces. Each piece is an attribute that can be set."""

    system: str
    eosys: str
    user: str
    eoh: str
    assistant: str
    eoa: str
    tool: str
    eotool: str
    separator: str
    start: str
    user_before_media: str | None
    puts_media_first: bool
    opens_with_media: bool
    media_wording: str
    gathers_media: bool
    after_media: str
    is_completion: bool
    generation_prompt: str | None
    is_system_in_user: bool

    def __init__(self, name: str, pieces: Pieces, *, special_tokens: Sequence[str] = ()) -> None:
        self.name = name
        self._special_tokens = tuple(special_tokens)
        for field in fields(pieces):
            setattr(self, field.name, getattr(pieces, field.name))
        self.stop_words = list(pieces.stop_words)

    def __setattr__(self, attribute: str, value: object) -> None:
        known = {field.name for field in fields(Pieces)} | {"name", "_special_tokens"}
        if attribute not in known:
            raise AttributeError(
                f"a chat template has no piece {attribute!r}; known pieces: {', '.join(sorted(known))}"
            )
        check_value(PiecesTemplate, attribute, value)
        object.__setattr__(self, attribute, value)

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
        self._refuse(messages, tools, options, continue_final)
        opening, messages = self._gather(messages, markers)
        write_media = self._make_writer(messages, markers)
        turns = [self._turn(message, write_media, shield) for message in messages]
        if self.is_completion:
            return opening + "".join(turn.content for turn in turns)
        if self.meta_instruction is not None and not any(turn.role == "system" for turn in turns):
            turns.insert(0, _Turn("system", shield.cover(self.meta_instruction)))
        text = opening + self.start + "".join(self._glue(turns, leave_open=continue_final))
        if add_generation_prompt:
            text += self.assistant if self.generation_prompt is None else self.generation_prompt
        return text

    def _gather(self, messages: Sequence[Message], markers: Markers) -> tuple[str, Sequence[Message]]:
        """Return the markers that come before everything else, and the messages without their media."""
        media = [part for message in messages for part in _media_in(message)]
        is_first = self.gathers_media or (self.opens_with_media and len(media) == 1)
        if not is_first or any(part.is_placed for part in media):
            return "", messages
        return "".join(markers[part.modality] for part in media), [_without_media(message) for message in messages]

    def _make_writer(self, messages: Sequence[Message], markers: Markers) -> Callable[[MediaPart], str]:
        """Return what writes the media of these messages, one after another."""
        has_several = sum(len(_media_in(message)) for message in messages) > 1
        numbers = count(1)

        def write(part: MediaPart) -> str:
            marker, number = markers[part.modality], next(numbers)
            if part.is_placed or not has_several or not self.media_wording:
                return marker
            return self.media_wording.replace("{number}", str(number)).replace("{media}", marker)

        return write

    def _turn(self, message: Message, write_media: Callable[[MediaPart], str], shield: Shield) -> _Turn:
        media = _media_in(message)
        if self.puts_media_first and _role(message) == "user" and not any(part.is_placed for part in media):
            texts = tuple(part for part in message.parts if not isinstance(part, MediaPart))
            content = flatten(replace(message, parts=texts), write_media=write_media, shield=shield)
            return _Turn(_role(message), content, media="".join(map(write_media, media)))
        content = flatten(message, write_media=write_media, shield=shield, after_media=self.after_media)
        return _Turn(_role(message), content, bool(message.parts) and isinstance(message.parts[0], MediaPart))

    def _glue(self, turns: Sequence[_Turn], *, leave_open: bool) -> Iterator[str]:
        is_user_open = False
        rounds = count(1)
        for index, (role, content, begins_with_media, media) in enumerate(turns):
            is_last = index == len(turns) - 1
            if role == "system":
                yield self.system + content + self.eosys
                is_user_open = self.is_system_in_user
            elif role == "user":
                user = self.user if self.user_before_media is None or not begins_with_media else self.user_before_media
                user = user.replace("{round}", str(next(rounds)))
                yield media + ("" if is_user_open else user) + content + self.eoh
                is_user_open = False
            elif role == "tool":
                yield self.tool + content + self.eotool
            elif is_last and leave_open:
                yield self._write_answer(content)
            else:
                yield self._write_answer(content) + self.eoa + self.separator

    def _write_answer(self, content: str) -> str:
        """Return an answer behind `assistant`. Where `generation_prompt` leaves the space before an answer to the
        model, its own answers begin with that space and those of others do not: both get one."""
        if self.generation_prompt is not None and self.assistant == f"{self.generation_prompt} ":
            content = content.removeprefix(" ")
        return self.assistant + content

    def _refuse(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None,
        options: Mapping[str, object],
        continue_final: bool,
    ) -> None:
        if options:
            fail(f"the chat template {self.name!r} takes no options, got {', '.join(sorted(options))}")
        if tools:
            fail(f"the chat template {self.name!r} does not support tools", "tools")
        if continue_final and _role(messages[-1]) != "assistant":
            fail("the last message must be the assistant's to be continued")
        for message in messages:
            if message.extra.get("tool_calls"):
                fail(f"the chat template {self.name!r} does not support tool_calls")
            if message.role == "tool" and not self.tool and not self.is_completion:
                fail(f"the chat template {self.name!r} does not support the role 'tool'")


def _media_in(message: Message) -> list[MediaPart]:
    return [part for part in message.parts if isinstance(part, MediaPart)]


def _role(message: Message) -> str:
    if message.role == "developer":
        return "system"
    if message.role not in ("system", "user", "assistant", "tool"):
        fail(f"role must be one of system, user, assistant, tool, got {message.role!r}")
    return message.role


def _without_media(message: Message) -> Message:
    return replace(message, parts=tuple(part for part in message.parts if not isinstance(part, MediaPart)))
