"""Find out how a model writes its thoughts and calls: named by the user, else by what its chat template writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from seesay.errors import ConfigError
from seesay.templates.parsers.answer_parser import AnswerParser, FormatParser, PlainParser
from seesay.templates.parsers.call_syntax import Form, name_tokens, or_form, read_functions, sequence_form, write_tag
from seesay.templates.parsers.gemma_calls import GEMMA4
from seesay.templates.parsers.harmony import HARMONY
from seesay.templates.parsers.invoke_calls import DEEPSEEK_V32, MINIMAX_M2
from seesay.templates.parsers.named_calls import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, MISTRAL, MISTRAL_LIST
from seesay.templates.parsers.object_calls import HERMES, INTERNLM2, LLAMA_JSON
from seesay.templates.parsers.pythonic_calls import MINICPM, PYTHONIC
from seesay.templates.parsers.reasoning import (
    GEMMA_THOUGHT,
    HARMONY_THOUGHT,
    KIMI_THINK,
    MINICPM_THOUGHT,
    MISTRAL_THINK,
    THINK,
    ReasoningFormat,
)
from seesay.templates.parsers.tagged_calls import GLM45, GLM47, QWEN3_CODER
from seesay.templates.parsers.tool_format import ToolFormat

T = TypeVar("T")

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_V32,
    "gemma4": GEMMA4,
    "glm45": GLM45,
    "glm47": GLM47,
    "gpt_oss": HARMONY,
    "hermes": HERMES,
    "internlm2": INTERNLM2,
    "kimi_k2": KIMI_K2,
    "llama3_json": LLAMA_JSON,
    "minicpm": MINICPM,
    "minimax_m2": MINIMAX_M2,
    "mistral": MISTRAL,
    "mistral_list": MISTRAL_LIST,
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN3_CODER,
}
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": THINK,
    "gemma4": GEMMA_THOUGHT,
    "gpt_oss": HARMONY_THOUGHT,
    "kimi_vl": KIMI_THINK,
    "minicpm": MINICPM_THOUGHT,
    "mistral": MISTRAL_THINK,
    "qwen3": THINK,
}
_TOOL_ALIASES = {
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v31",
    "deepseekv32": "deepseek_v32",
    "glm": "glm45",
    "gpt-oss": "gpt_oss",
    "intern-s1": "internlm2",
    "internlm": "internlm2",
    "interns1": "internlm2",
    "kimi-k2": "kimi_k2",
    "llama3": "llama3_json",
    "llama4": "pythonic",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "minicpm3": "minicpm",
    "minimax-m2": "minimax_m2",
    "openai": "gpt_oss",
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen2d5": "hermes",
    "qwen3": "hermes",
    "qwen3coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
}
_REASONING_ALIASES = {
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3": "qwen3",
    "deepseek_v3": "qwen3",
    "glm45": "qwen3",
    "gpt-oss": "gpt_oss",
    "intern-s1": "qwen3",
    "interns1": "qwen3",
    "internvl": "qwen3",
    "kimi": "kimi_vl",
    "openai_gptoss": "gpt_oss",
    "qwen-qwq": "qwen3",
    "qwen3-thinking": "qwen3",
}
"""Names that vLLM, SGLang and LMDeploy have for the same formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How one model writes its answers.

    reasoning: None where no thought is marked. tools: None where no format of calls is known.
    kept_tokens: special tokens that must stay in the text for the parser, though others are left out
        (`GenerationRequest.kept_tokens`). special_ids: their ids.
    """

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    kept_tokens: tuple[str, ...] = ()
    special_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def marks_text(self) -> bool:
        """Whether markers stand around text, too, so that every answer has to be read."""
        return self.tools is not None and self.tools.text_begin is not None

    def parser(
        self,
        *,
        tools: Sequence[Mapping[str, object]] = (),
        is_thinking: bool = False,
        streams_calls: bool = False,
        calls_alone: bool = False,
    ) -> AnswerParser:
        """Return a parser for one answer.

        tools: the functions that the model may call, as chat completions have them. Without any, calls are not read.
        is_thinking: the prompt ends inside a thought (`reasoning.is_open(prompt)`).
        streams_calls: hand out calls while they are written. Set it where a grammar keeps calls well-formed
            (`call_grammar`) and the answer is streamed; otherwise a call is handed out once it is complete, and a
            malformed one becomes content.
        calls_alone: what an answer says that does not begin with a call is content, whatever it looks like. Set it
            where a grammar leaves one of the two (`call_grammar` with `other`).
        """
        tool_format = self.tools if tools or self.marks_text else None
        if self.reasoning is None and tool_format is None:
            return PlainParser()
        return FormatParser(
            reasoning=self.reasoning,
            tool_format=tool_format,
            tools=tools,
            is_thinking=is_thinking,
            streams_calls=streams_calls,
            calls_alone=calls_alone,
        )

    def call_grammar(
        self,
        tools: Sequence[Mapping[str, object]],
        mode: Literal["auto", "required"],
        is_parallel: bool,
        other: Form | None = None,
    ) -> dict[str, Any] | None:
        """Return the grammar of an answer that may call functions, as a `response_format`; None where no format of
        calls is known.

        tools: those that may be called, with schemas that say how they are held (`seesay.config.grammar.HELD`).
        mode: 'required' allows calls alone. 'auto' allows any text until a call is begun, which is then held to its
        schema. is_parallel: several calls are allowed. other: with 'auto', the form of an answer that is not calls, and
        then has none.
        """
        if self.tools is None or not tools:
            return None
        syntax = self.tools.write(read_functions(tools))
        if mode == "auto" and other is not None:
            calls = write_tag(syntax, self.tools.markers, "required", self.special_ids, is_parallel=is_parallel)
            return {**calls, "format": or_form([calls["format"], self._begin_text(other)])}
        return write_tag(syntax, self.tools.markers, mode, self.special_ids, is_parallel=is_parallel)

    def text_grammar(self, form: Form) -> dict[str, Any]:
        """Return the grammar of an answer whose text is of a form, as a `response_format`."""
        return {"type": "structural_tag", "format": self._begin_text(form)}

    def _begin_text(self, form: Form) -> Form:
        begin = None if self.tools is None else self.tools.text_begin
        return form if begin is None else name_tokens(sequence_form([begin, form]), self.special_ids)


def find_answer_format(
    template_source: str,
    special_tokens: Mapping[str, int],
    *,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> AnswerFormat:
    """Return how a model writes its answers.

    template_source: the text of its chat template ("" if it has none); for a checkpoint with several, all of them.
    special_tokens: of its tokenizer, with their ids (`Tokenizer.special_token_ids`).
    tool_call_parser, reasoning_parser: names of formats; None finds them.
    Raises ConfigError for a name that is not known.
    """
    tools = (
        _find_tools(template_source)
        if tool_call_parser is None
        else _named(TOOL_FORMATS, _TOOL_ALIASES, tool_call_parser, "tool_call_parser")
    )
    reasoning = (
        _find_reasoning(template_source)
        if reasoning_parser is None
        else _named(REASONING_FORMATS, _REASONING_ALIASES, reasoning_parser, "reasoning_parser")
    )
    markers = [*(tools.tokens if tools else ()), *((reasoning.begin, reasoning.end) if reasoning else ())]
    special_ids = {
        token: token_id for token, token_id in special_tokens.items() if any(token in marker for marker in markers)
    }
    return AnswerFormat(
        reasoning=reasoning,
        tools=tools,
        kept_tokens=tuple(special_ids),
        special_ids=special_ids,
    )


def check_parser_names(tool_call_parser: str | None, reasoning_parser: str | None) -> None:
    """Raise ConfigError for a name that is not known."""
    if tool_call_parser is not None:
        _named(TOOL_FORMATS, _TOOL_ALIASES, tool_call_parser, "tool_call_parser")
    if reasoning_parser is not None:
        _named(REASONING_FORMATS, _REASONING_ALIASES, reasoning_parser, "reasoning_parser")


def _find_tools(source: str) -> ToolFormat | None:
    return next((format for marks, format in _TOOL_MARKS if all(mark in source for mark in marks)), None)


def _find_reasoning(source: str) -> ReasoningFormat | None:
    """Return the format whose markers a template writes, or looks for in earlier answers."""
    formats = dict.fromkeys(REASONING_FORMATS.values())
    return next((format for format in formats if format.begin in source or format.end in source), None)


_TOOL_MARKS: Sequence[tuple[Sequence[str], ToolFormat]] = (
    (("<|tool_call_start|>", "```python"), MINICPM),
    (("<tool_call>", "<function="), QWEN3_CODER),
    (("<tool_call>", "<arg_key>", "\\n<arg_value>"), GLM45),
    (("<tool_call>", "<arg_key>", "\n<arg_value>"), GLM45),
    (("<tool_call>", "<arg_key>"), GLM47),
    (("<tool_call>",), HERMES),
    (("<|action_start|>",), INTERNLM2),
    (GEMMA4.tokens, GEMMA4),
    (("<|channel|>", "<|constrain|>", "<|call|>"), HARMONY),
    (KIMI_K2.markers, KIMI_K2),
    (MINIMAX_M2.markers, MINIMAX_M2),
    (DEEPSEEK_V32.markers, DEEPSEEK_V32),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    ((DEEPSEEK_V3.markers[0], "```json"), DEEPSEEK_V3),
    (DEEPSEEK_V3.markers[:1], DEEPSEEK_V31),
    (("<|python_start|>",), PYTHONIC),
    (("[func_name1(",), PYTHONIC),
    (("<|python_tag|>", '"parameters"'), LLAMA_JSON),
    (('"name": function name',), LLAMA_JSON),
)
"""Texts by which the chat templates of a format are known. The first line whose texts are all in a template decides."""


def _named(formats: Mapping[str, T], aliases: Mapping[str, str], name: str, option: str) -> T:
    found = formats.get(aliases.get(name, name))
    if found is None:
        raise ConfigError(f"{option} must be one of {', '.join(sorted({*formats, *aliases}))}, got {name!r}")
    return found
