"""Requests of OpenAI's chat and completions API as pydantic models, with our extensions.

Every field has an effect, is a hint, or is refused with a 400 that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, SkipValidation, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue

from seesay.serving.errors import bad_request, requires
from seesay.serving.openai.message_parts import ChatMessages
from seesay.serving.openai.tool_fields import HAS_CHOICE, TOOL_TYPES, ChatToolChoice, ChatTools
from seesay.serving.requests.beam_fields import BeamFields
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.fields import (
    Biases,
    Metadata,
    Prompts,
    StopIds,
    StopTexts,
    StrictModel,
    Text,
    check_stop_words,
    needs,
)
from seesay.serving.requests.grammar_fields import FIELD_NAMES, Format, find_format, name_format
from seesay.serving.requests.request_model import Refused, pick_hints
from seesay.serving.requests.restriction_fields import RestrictionFields
from seesay.serving.requests.shared_fields import (
    REFUSED,
    REFUSED_IN_CHAT,
    ChatFields,
    PromptFields,
    refuse_two_values,
)
from seesay.serving.requests.tools import drop_server_tools

T = TypeVar("T")


def _find_given(value: T | None, other: T | None) -> T | None:
    """Return the value of an option that has two names."""
    return other if value is None else value


class StreamOptions(StrictModel):
    """continuous_usage_stats (extension): `usage` in every event, with the tokens so far."""

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class SamplingFields(RestrictionFields):
    """The fields that chat and text completions have in common."""

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (needs("stream_options", "stream"),)
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_new_tokens": ("max_tokens", "max_completion_tokens", "max_new_tokens"),
        "random_seed": ("seed",),
        "stop_words": ("stop",),
    }

    model: str | None = Field(None, description="a name of /v1/models; may be left out")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, description="answers per prompt")
    stop: Text | StopTexts | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Biases | None = Field(None, description="token id → value added to its logit, -100 to 100")
    user: str | None = Field(None, max_length=512, description="accepted, not used")
    top_k: int | None = Field(None, ge=-1, description="extension; 0 or -1 is off")
    min_p: float | None = Field(None, ge=0, le=1, description="extension")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="extension")
    ignore_eos: bool | None = Field(None, description="extension: continue after an end-of-sequence token")
    skip_special_tokens: bool | None = Field(None, description="extension; default true")
    min_new_tokens: int | None = Field(None, ge=0, description="extension")
    include_stop_str_in_output: bool | None = Field(None, description="extension")
    stop_token_ids: StopIds | None = Field(None, description="extension")
    return_token_ids: bool | None = Field(None, description="extension: `token_ids` in each choice")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="extension: tokens of log-probabilities as `token_id:N`"
    )
    response_format: Format | None = Field(None, description="the grammar of the answer")
    structured_outputs: dict[str, Any] | None = Field(None, description="vLLM's form of response_format")
    guided_json: dict[str, Any] | str | bool | None = Field(None, description="vLLM's older form: a JSON Schema")
    guided_regex: str | None = Field(None, description="vLLM's older form: a regular expression")
    guided_choice: list[str] | None = Field(None, description="vLLM's older form: the possible answers")
    guided_grammar: str | None = Field(None, description="vLLM's older form: EBNF")
    json_schema: dict[str, Any] | str | None = Field(None, description="SGLang's form: a JSON Schema")
    regex: str | None = Field(None, description="SGLang's form: a regular expression")
    ebnf: str | None = Field(None, description="SGLang's form: EBNF")
    structural_tag: dict[str, Any] | str | None = Field(None, description="SGLang's form: a structural tag")
    grammar: str | None = Field(None, description="extension: EBNF")
    choice: list[str] | None = Field(None, description="extension: the possible answers")

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        check_stop_words([stop] if isinstance(stop, str) else stop or [])
        return stop

    @field_validator("stop_token_ids")
    @classmethod
    def _check_stop_ids(cls, ids: list[int] | None) -> list[int] | None:
        if ids and len(ids) > 256:
            raise ValueError(f"at most 256 token ids are allowed, got {len(ids)}")
        return ids

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key, value in (bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise ValueError(f"keys must be token ids, got {key[:20]!r}")
            if not -100 <= value <= 100:
                raise ValueError(f"values must be in [-100, 100], got {value:g} for {key}")
        return bias

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise requires("stream_options", "stream", self.stream)
        options = self.stream_options
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            name, other = "stream_options.continuous_usage_stats", "stream_options.include_usage"
            raise requires(name, other, options.include_usage)
        return self

    @model_validator(mode="after")
    def _check_grammar(self) -> Self:
        if self.answer_format is not None and self.ignore_eos:
            raise bad_request("ignore_eos cannot be combined with a grammar, which says where it ends", "ignore_eos")
        return self

    @property
    def answer_format(self) -> dict[str, Any] | None:
        """The `response_format` that the fields ask for. Raises `ApiError` 400."""
        return find_format(self._formats)

    def field_names(self, *prompts: str) -> FieldNames:
        return super().field_names(*prompts).naming(name_format(self._formats))

    @property
    def _formats(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in FIELD_NAMES}

    @property
    def stop_words(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def sampling(self) -> dict[str, Any]:
        """Return the fields of `GenerationConfig`; None where the request has no value."""
        bias = {int(token_id): value for token_id, value in (self.logit_bias or {}).items()}
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty or None,
            "frequency_penalty": self.frequency_penalty or None,
            "logit_bias": bias or None,
            "random_seed": None if self.seed is None else self.seed % (1 << 63),
            "stop_words": self.stop_words or None,
            "stop_token_ids": self.stop_token_ids or None,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "min_new_tokens": _find_given(self.min_new_tokens, self.min_tokens),
            "include_stop_str_in_output": _find_given(self.include_stop_str_in_output, self.no_stop_trim),
            "spaces_between_special_tokens": self.spaces_between_special_tokens,
            "max_thinking_tokens": self.thought_limit,
            "response_format": self.answer_format,
            **self.restrictions(),
        }


class ChatCompletionRequest(BeamFields, ChatFields, SamplingFields):
    """`POST /v1/chat/completions`."""

    refused: ClassVar[Refused] = {
        **REFUSED_IN_CHAT,
        "functions": (([],), "not supported: use tools"),
        "function_call": (("none", "auto"), "not supported: use tool_choice"),
        "modalities": ((["text"],), "not supported, except ['text']"),
        "audio": ((), "not supported"),
        "prediction": ((), "not supported"),
        "web_search_options": ((), "not supported"),
        "verbosity": ((), "not supported"),
        "store": ((False,), "not supported, except false"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
    }

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = pick_hints(
        refused, "prediction", "verbosity", "store", "service_tier"
    )

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (
        *SamplingFields.rules,
        *BeamFields.beam_rules,
        needs("top_logprobs", "logprobs"),
        needs("best_of", "use_beam_search"),
        HAS_CHOICE,
    )
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {"logprobs": ("top_logprobs", "logprobs")}

    messages: SkipValidation[ChatMessages] = Field(description="the conversation so far")
    max_tokens: int | None = Field(None, ge=1, description="default: as many as fit into the context")
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens")
    tools: ChatTools | None = Field(None, description="functions that the model may call")
    tool_choice: ChatToolChoice | None = Field(None, description="default: auto with tools, none without")
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most; default true")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: int | None = Field(
        None, ge=0, le=20, description="extension: number of alternatives per token of the prompt"
    )
    best_of: int | None = Field(
        None, ge=1, description="extension, with use_beam_search: texts that are kept, of which the n best are returned"
    )
    return_boxes: bool | None = Field(
        None,
        description="extension: `boxes`, `points` and `polygons` in each choice, in pixels of the picture, and "
        "`timestamps`, in seconds of the video",
    )
    metadata: Metadata | None = Field(None, description="accepted, not used: completions are not stored")
    safety_identifier: str | None = Field(None, max_length=512, description="accepted, not used")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="accepted, not used: the prefix cache finds prompts by their content"
    )
    prompt_cache_retention: str | None = Field(
        None, description="accepted, not used: prefixes stay cached while there is room"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="extension: variables of the chat template")
    add_generation_prompt: bool | None = Field(None, description="extension; default true")
    continue_final_message: bool | None = Field(None, description="extension: the last message begins the answer")

    @classmethod
    def drop_extra(cls, body: dict[str, Any]) -> Sequence[str]:
        lone = ["best_of"] if "best_of" in body and not body.get("use_beam_search") else []
        for name in lone:
            del body[name]
        return [*lone, *drop_server_tools(body, TOOL_TYPES)]

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of is not None:
            if not self.use_beam_search:
                raise requires("best_of", "use_beam_search", self.use_beam_search)
            _check_best_of(self.best_of, self.n or 1, streams=False)
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise requires("top_logprobs", "logprobs", self.logprobs)
        refuse_two_values(self, [("max_completion_tokens", "max_tokens")])
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt cannot both be true", "continue_final_message"
            )
        for name in self.chat_template_kwargs or {}:
            if name in RESERVED_TEMPLATE_NAMES:
                raise bad_request(f"chat_template_kwargs.{name} is set by the server", f"chat_template_kwargs.{name}")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_choices(self) -> tuple[int, str]:
        """How many answers are computed, and the field that says so."""
        return (self.n or 1, "n") if self.best_of is None else (self.best_of, "best_of")

    @property
    def template_options(self) -> dict[str, Any]:
        """The chat template's variables besides the messages."""
        options = dict(self.chat_template_kwargs or {})
        if self.add_generation_prompt is not None:
            options["add_generation_prompt"] = self.add_generation_prompt
        if self.continue_final_message:
            options["continue_final"] = True
        if self.documents:
            options["documents"] = self.documents
        return options


RESERVED_TEMPLATE_NAMES = frozenset(
    {"self", "messages", "markers", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final"}
)


def _check_best_of(best_of: int, n: int, *, streams: bool) -> None:
    if best_of < n:
        raise bad_request(f"best_of must be at least n={n}, got {best_of}", "best_of")
    if best_of > n and streams:
        raise bad_request("best_of above n cannot be combined with stream: the best is known at the end", "best_of")


class CompletionRequest(BeamFields, PromptFields, SamplingFields):
    """`POST /v1/completions`: raw texts or token ids. No chat template is applied."""

    refused: ClassVar[Refused] = {
        **REFUSED,
        "session_id": ((-1,), "not supported, except -1"),
        "suffix": (("",), "not supported: the model does not insert text"),
        "service_tier": (("auto", "default"), "not supported, except auto and default"),
    }

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = pick_hints(refused, "service_tier")

    rules: ClassVar[tuple[JsonSchemaValue, ...]] = (
        *SamplingFields.rules,
        *BeamFields.beam_rules,
        needs("max_tokens", "echo", {"const": 0}),
    )
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {"best_of": ("best_of", "n")}

    prompt: SkipValidation[Prompts] = Field(description="one prompt, or a list of them")
    max_tokens: int | None = Field(None, ge=0, description="default 16; 0 requires echo")
    max_completion_tokens: int | None = Field(None, ge=1, description="extension: the same as max_tokens")
    logprobs: int | None = Field(None, ge=0, le=20, description="number of alternatives per token")
    echo: bool | None = Field(None, description="begin the answer with the prompt")
    prompt_logprobs: int | None = Field(
        None, ge=0, le=20, description="extension: number of alternatives per token of the prompt"
    )
    best_of: int | None = Field(
        None, ge=1, description="answers to generate per prompt, of which the n best are returned"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.best_of is not None:
            _check_best_of(self.best_of, self.n or 1, streams=bool(self.stream))
        refuse_two_values(self, [("max_completion_tokens", "max_tokens")])
        if self.max_tokens == 0 and not self.echo:
            raise requires("max_tokens=0", "echo", self.echo)
        return self
