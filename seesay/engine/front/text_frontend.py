"""How a model reads and writes text: its tokenizer, its chat template, and the formats that both imply."""

from __future__ import annotations

from seesay.engine.front.thoughts import Thoughts
from seesay.processors.text.tokenizer import Tokenizer
from seesay.templates import ChatTemplate
from seesay.templates.parsers.choose import AnswerFormat, find_answer_format


class TextFrontend:
    """The tokenizer and chat template of one model, which may be replaced between requests.

    answer_format: how the model writes calls of tools and thoughts. thoughts: what requests may say about the latter.
    tool_call_parser, reasoning_parser: the names of these formats; None finds them by the template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """Raises `ConfigError` for a name that is not known."""
        self._parsers = {"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser}
        self._tokenizer, self._chat_template = tokenizer, chat_template
        self._read_formats()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._read_formats()

    @property
    def chat_template(self) -> ChatTemplate:
        return self._chat_template

    @chat_template.setter
    def chat_template(self, chat_template: ChatTemplate) -> None:
        self._chat_template = chat_template
        self._read_formats()

    def _read_formats(self) -> None:
        source = "\n".join(self._chat_template.sources)
        self.answer_format: AnswerFormat = find_answer_format(
            source, self._tokenizer.special_token_ids, **self._parsers
        )
        self.thoughts = Thoughts(self.answer_format.reasoning, self._tokenizer, self._chat_template)
