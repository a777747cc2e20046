"""Fields that clients of vLLM, SGLang and LMDeploy send, under the names that these servers use.

docs/server.md has a table of them, and tests/serving/test_field_table.py compares it with the models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from seesay.serving.errors import bad_request
from seesay.serving.requests.fields import at_most
from seesay.serving.requests.media_options import MediaOptions, read_media_options
from seesay.serving.requests.request_model import Refused, RequestModel
from seesay.serving.requests.thinking_fields import Effort, ThoughtLimitFields
from seesay.vl.family import Family

_ID = r"^[A-Za-z0-9_.:-]{1,128}$"
_NO_ADAPTERS = ((), "not supported: name the adapter in model")
_NO_TRANSFER = ((), "not supported: prefill and decode run in the same engine")

REFUSED: Refused = {
    "vllm_xargs": (({},), "not supported: this server has no such extensions"),
    "kv_transfer_params": _NO_TRANSFER,
    "bootstrap_host": _NO_TRANSFER,
    "bootstrap_port": _NO_TRANSFER,
    "bootstrap_room": _NO_TRANSFER,
    "migration_request": _NO_TRANSFER,
    "with_cache": ((False,), _NO_TRANSFER[1]),
    "preserve_cache": ((False,), _NO_TRANSFER[1]),
    "data_parallel_rank": ((), "not supported: there is one engine"),
    "lora_path": _NO_ADAPTERS,
    "adapter_name": _NO_ADAPTERS,
    "session_params": ((), "not supported: use /v1/chat/interactive"),
    "extra_key": ((), "not supported: use cache_salt"),
    "stop_regex": ((), "not supported: use stop, or a grammar"),
    "custom_logit_processor": ((), "not supported: requests cannot send code"),
    "custom_params": (({},), "not supported: requests cannot send code"),
    "return_hidden_states": ((False,), "not supported: use /v1/embeddings, or output_last_hidden_state in Python"),
    "return_routed_experts": ((False,), "not supported"),
}
"""Fields of other servers without a counterpart here: the values that change nothing, and why others are refused."""

REFUSED_BEAMS: Refused = {
    "use_beam_search": ((False,), "not supported: this route gives one answer"),
    "length_penalty": ((1.0, 1), "not supported: it belongs to beam search"),
}
"""The fields of a beam search, on routes that have none."""

REFUSED_IN_CHAT: Refused = {
    **REFUSED,
    "do_preprocess": ((True,), "not supported, except true: /v1/completions applies no chat template"),
    "session_id": ((-1,), "not supported, except -1: /v1/chat/interactive has sessions"),
    "input_ids": ((), "not supported: /v1/completions and /generate take token ids"),
    "min_dynamic_patch": ((), "not supported"),
    "images_config": (({},), "not supported: use mm_processor_kwargs"),
    "use_audio_in_video": ((False,), "not supported: audio is not read"),
    "separate_reasoning": ((True,), "not supported, except true: thoughts are always apart"),
    "include_reasoning": ((True,), "not supported, except true: thoughts are always sent"),
    "stream_reasoning": ((True,), "not supported, except true: thoughts are always streamed"),
}

Document = Annotated[dict[str, str], at_most(64), Field(json_schema_extra={"maxProperties": 64})]


class EngineFields(RequestModel):
    """Fields of all routes that compute a prompt."""

    mm_processor_kwargs: dict[str, Any] | None = Field(
        None, description="extension: options for all pictures and videos that do not have them themselves"
    )
    media_io_kwargs: dict[str, Any] | None = Field(None, description="extension: options by modality: `image`, `video`")
    priority: int | None = Field(
        None,
        ge=-(1 << 31),
        lt=1 << 31,
        description="extension: the client's requests with the lowest are computed first",
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="extension: share cached prefixes and pictures only with this salt",
    )

    def media_options(self, family: Family) -> MediaOptions:
        """Return the options of the request's pictures and videos. Raises `ApiError` 400 for unknown ones."""
        return read_media_options(family, self.mm_processor_kwargs, self.media_io_kwargs, single=self._single_options)

    def request_options(self) -> dict[str, Any]:
        """Return the fields of `GenerationRequest` that these fields stand for. `Answering` finds out whether the model
        that a request names is an adapter."""
        named = getattr(self, "model", None)
        return {"priority": self.priority or 0, "cache_salt": self.cache_salt or "", "adapter_name": named}

    @property
    def _single_options(self) -> dict[str, object]:
        """Options of pictures that are fields themselves."""
        return {}


class TruncationFields(EngineFields):
    """A limit on the tokens of a prompt."""

    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="extension: use the last so many tokens of the prompt; -1: as many as fit"
    )

    @model_validator(mode="after")
    def _check_truncation(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise bad_request("truncate_prompt_tokens must be -1 or at least 1, got 0", "truncate_prompt_tokens")
        return self

    def request_options(self) -> dict[str, Any]:
        return {**super().request_options(), "truncate_prompt_tokens": self.truncate_prompt_tokens}


class AnswerFields(ThoughtLimitFields, TruncationFields):
    """Fields of all routes that generate an answer."""

    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "min_new_tokens": ("min_new_tokens", "min_tokens"),
        "include_stop_str_in_output": ("include_stop_str_in_output", "no_stop_trim"),
    }

    min_tokens: int | None = Field(None, ge=0, description="extension: the same as min_new_tokens")
    no_stop_trim: bool | None = Field(None, description="extension: the same as include_stop_str_in_output")
    spaces_between_special_tokens: bool | None = Field(None, description="extension; default true")
    request_id: str | None = Field(None, pattern=_ID, description="extension: the `id` of the answer, without a prefix")
    rid: str | None = Field(None, pattern=_ID, description="extension: the `id` of the answer")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        refuse_two_values(self, _SAME_FIELDS)
        if self.request_id is not None and self.rid is not None:
            raise bad_request("rid cannot be combined with request_id: give one of them", "rid")
        return self

    def name_answer(self, prefix: str, made: str) -> str:
        """Return the id of the answer: the client's, else `made`. `prefix` goes in front of a `request_id`."""
        return self.rid or (made if self.request_id is None else prefix + self.request_id)


_SAME_FIELDS = (("min_new_tokens", "min_tokens"), ("include_stop_str_in_output", "no_stop_trim"))


def refuse_two_values(body: RequestModel, names: Sequence[tuple[str, str]]) -> None:
    """Raise `ApiError` 400 for two names of one field that have different values. A model may lack some of them."""
    for name, other in names:
        first, second = getattr(body, name, None), getattr(body, other, None)
        if first is not None and second is not None and first != second:
            raise bad_request(f"{name} and {other} mean the same and differ: give one of them", other)


class TextFields(TruncationFields):
    """Fields of prompts that may be raw texts."""

    add_special_tokens: bool | None = Field(
        None, description="extension: false leaves out the BOS that the tokenizer adds; default true"
    )

    def request_options(self) -> dict[str, Any]:
        return {**super().request_options(), "add_special_tokens": self.add_special_tokens is not False}


class PromptFields(TextFields, AnswerFields):
    """Fields of chat and text completions."""


class ChatFields(PromptFields):
    """Fields of `/v1/chat/completions` alone."""

    chat_template: str | None = Field(
        None, max_length=1 << 18, description="extension: a Jinja template; refused unless the server trusts requests"
    )

    documents: list[Document] | None = Field(
        None, max_length=1024, description="extension: texts that the chat template shows, such as {title, text}"
    )
    echo: bool | None = Field(None, description="extension: begin the answer with a last message of the assistant")
    max_dynamic_patch: int | None = Field(None, ge=1, le=1024, description="extension: see mm_processor_kwargs")
    reasoning_effort: Effort | None = Field(None, description="how much a model thinks; none: not at all")
    enable_thinking: bool | None = Field(None, description="extension: whether a model thinks before it answers")

    def request_options(self) -> dict[str, Any]:
        return {
            **super().request_options(),
            "chat_template": self.chat_template,
            "enable_thinking": self.enable_thinking,
            "reasoning_effort": self.reasoning_effort,
        }

    @property
    def _single_options(self) -> dict[str, object]:
        return {} if self.max_dynamic_patch is None else {"max_dynamic_patch": self.max_dynamic_patch}
