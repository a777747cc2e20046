"""Chat templates that requests bring along."""

from __future__ import annotations

import threading
from collections import OrderedDict

from seesay.errors import CheckpointError
from seesay.templates.chat import ChatTemplate, PromptTokenizer, fail
from seesay.templates.jinja import JinjaTemplate

_MAX_KEPT = 16


class RequestedTemplates:
    """The templates of the newest requests, each compiled once, in the sandbox. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._templates: OrderedDict[tuple[int, str], ChatTemplate] = OrderedDict()

    def get(self, source: str, tokenizer: PromptTokenizer) -> ChatTemplate:
        """Return the template. Raises `RequestError` for a source that is not valid Jinja."""
        key = (id(tokenizer), source)
        with self._lock:
            if key in self._templates:
                self._templates.move_to_end(key)
                return self._templates[key]
        try:
            template = JinjaTemplate(
                "chat_template",
                source,
                special_tokens=tuple(tokenizer.special_tokens),
                variables=tokenizer.template_variables,
                file="of the request",
            )
        except CheckpointError as error:
            fail(str(error), "chat_template")
        with self._lock:
            self._templates[key] = template
            while len(self._templates) > _MAX_KEPT:
                self._templates.popitem(last=False)
        return template
