"""A checkpoint's own jinja chat template, rendered like Transformers' `apply_chat_template`.

The template is untrusted code: it runs in a separate process (`sandbox.py`) and gets plain JSON values only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from seesay.config.checks import check_value
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.templates.chat import ChatTemplate, Markers, fail
from seesay.templates.content_support import ContentSupport
from seesay.templates.sandbox import BoundedTemplate, RenderError
from seesay.templates.shield import Shield
from seesay.templates.tool_support import ToolSupport
from seesay.values import Message, TextPart

logger = logging.getLogger("seesay")

_BLAMED = {"limit": "was stopped", "unsafe": "is not safe"}
_RESERVED = ("messages", "tools", "add_generation_prompt")


class _TemplateDefault:
    """Sentinel for the system message that the template itself writes."""

    def __repr__(self) -> str:
        return "<the template's own>"


class _StoppedError(RequestError):
    """A template exceeded the limits of a rendering."""


class JinjaTemplate(ChatTemplate):
    """A template from the checkpoint.

    meta_instruction: initially the template's own default. A string becomes the system message of conversations without
    one. None removes the template's default instruction.
    """

    def __init__(
        self,
        name: str,
        source: str,
        *,
        named: Mapping[str, str] | None = None,
        special_tokens: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        stop_words: Sequence[str] = (),
        file: str | None = None,
    ) -> None:
        """named: other templates, of which requests with tools take "tool_use", and those with documents "rag".
        variables: bos_token and the like. file: name of the file that the user chose, for messages; None for the
        model's own. Raises CheckpointError if a source is not a valid jinja template."""
        try:
            template = BoundedTemplate(source)
        except RenderError as error:
            what = "is not valid jinja" if error.kind == "syntax" else "cannot be compiled"
            raise CheckpointError(f"the chat template of {name!r} {what}: {error}") from None
        self.name = name
        self.stop_words = list(stop_words)
        self._template = template
        self._source = source
        self._subject = "the model's chat template" if file is None else f"the chat template {file!r}"
        self._special_tokens = tuple(special_tokens)
        self._variables = dict(variables or {})
        self._meta: str | _TemplateDefault | None = _TemplateDefault()
        self._content = ContentSupport(self._try)
        self._tool_support = ToolSupport(self._try, takes_strings=self._content.takes_strings)
        self._named = {
            other: JinjaTemplate(name, text, special_tokens=special_tokens, variables=variables, file=file)
            for other, text in (named or {}).items()
        }

    def __setattr__(self, attribute: str, value: object) -> None:
        known = {"name", "stop_words", "meta_instruction"}
        if attribute not in known and not attribute.startswith("_"):
            raise AttributeError(
                f"{attribute!r} cannot be set: this is the checkpoint's own chat template, with meta_instruction and "
                "stop_words only; to change pieces, choose a built-in template with "
                "ChatTemplateConfig(model_name=…)"
            )
        if attribute in known:
            check_value(ChatTemplate, attribute, value)
        object.__setattr__(self, attribute, value)

    @property
    def source(self) -> str:
        """The jinja source."""
        return self._source

    @property
    def writes_tools(self) -> bool:
        return self._named["tool_use"].writes_tools if "tool_use" in self._named else self._tool_support.writes_tools

    @property
    def sources(self) -> tuple[str, ...]:
        return self._source, *(source for other in self._named.values() for source in other.sources)

    @property
    def meta_instruction(self) -> str | None:
        """The system message of conversations without one. None also stands for the template's own default."""
        return None if isinstance(self._meta, _TemplateDefault) else self._meta

    @meta_instruction.setter
    def meta_instruction(self, value: str | None) -> None:
        self._meta = value
        for other in self._named.values():
            other.meta_instruction = value

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
        special = "tool_use" if tools else "rag" if options.get("documents") else ""
        if (other := self._named.get(special)) is not None:
            return other._render_text(
                messages,
                shield=shield,
                markers=markers,
                add_generation_prompt=add_generation_prompt,
                continue_final=continue_final,
                tools=tools,
                options=options,
            )
        variables = self._make_variables(options, shield)
        messages = self._tool_support.bring_results(self._with_system(messages))
        chat: list[dict[str, Any]] = [
            {
                "role": message.role,
                "content": self._content.write(message, shield, markers),
                **shield.cover_all(self._tool_support.bring_extra(message.extra)),
            }
            for message in messages
        ]
        if continue_final:
            _append_to_final(chat, shield.tail + " ")
        text = self._run(
            **variables,
            messages=chat,
            tools=None if tools is None else shield.cover_all(tools),
            documents=shield.cover_all(options.get("documents")),
            add_generation_prompt=add_generation_prompt,
        )
        return _cut_at_tail(text, shield.tail) if continue_final else text

    def _make_variables(self, options: Mapping[str, object], shield: Shield) -> dict[str, object]:
        """Return the template's variables, with a request's `options` among them. Raises `RequestError` for an option
        that cannot be set."""
        for name in options:
            if name in _RESERVED or name in self._variables:
                fail(f"the chat template option {name!r} cannot be set", name)
        return {**self._variables, **shield.cover_all({k: v for k, v in options.items() if k != "documents"})}

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        if isinstance(self._meta, _TemplateDefault) or any(m.role in ("system", "developer") for m in messages):
            return messages
        if self._meta is None and not self._content.brings_system:
            return messages
        return [Message(role="system", parts=(TextPart(text=self._meta or ""),)), *messages]

    def _run(self, **context: object) -> str:
        try:
            return self._template.render(context)
        except RenderError as error:
            if error.kind in _BLAMED:  # the checkpoint's fault, of which clients must not learn the path
                logger.warning("%s: its chat template %s: %s", self.name, _BLAMED[error.kind], error)
                why = f"{self._subject} {_BLAMED[error.kind]}: {error}"
                raise (_StoppedError if error.kind == "limit" else RequestError)(ErrorCode.INTERNAL, why) from None
            if error.kind == "unavailable":
                raise RequestError(ErrorCode.INTERNAL, str(error)) from None
            if error.kind == "raised":  # by raise_exception: roles must alternate, no system message, …
                fail(f"{self._subject} refused this conversation: {error}")
            fail(f"{self._subject} failed on this conversation ({error})")
        except (RecursionError, ValueError) as error:  # values that are not valid JSON: too deep, too many digits
            fail(f"{self._subject} cannot process this conversation ({type(error).__name__}: {error})")

    def _try(self, messages: list[dict[str, object]], tools: list[dict[str, object]] | None = None) -> str | None:
        """Return what the template makes of a conversation that finds something out, or None where it refuses. Raises
        `CheckpointError` for a template that was stopped: each further probe would take as long."""
        try:
            return self._run(**self._variables, messages=messages, tools=tools, add_generation_prompt=False)
        except _StoppedError as error:
            raise CheckpointError(f"{self.name}: {error.message}") from None
        except RequestError:
            return None


def _append_to_final(chat: list[dict[str, Any]], tail: str) -> None:
    final = chat[-1]
    if isinstance(final["content"], str):
        final["content"] += tail
        return
    texts = [part for part in final["content"] or [] if part["type"] == "text"]
    if not texts:
        fail("the last message has no text to continue")
    texts[-1]["text"] += tail


def _cut_at_tail(text: str, tail: str) -> str:
    at = text.rfind(tail)
    if at < 0:
        fail("the chat template drops the message to continue")
    # If the template kept the space after the tail, it strips nothing. Otherwise it would strip the end of the text
    # too.
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()
