"""Forms of `/v1/audio/transcriptions` and `/v1/audio/translations`: `multipart/form-data` with a file."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

from fastapi import Request
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect

from seesay.serving.errors import bad_request
from seesay.serving.http.validation_errors import explain_invalid
from seesay.serving.requests.request_model import Refused, RequestModel
from seesay.serving.requests.submission import ClientGoneError
from seesay.serving.requests.unknown_fields import drop_unknown

_NO_TIMES = "not supported: the model does not say when something is said"
_NO_SPEAKERS = ((), "not supported: the model does not tell speakers apart")
_MAX_FIELDS = 32
MAX_PROMPT_CHARS = 8192
_FormT = TypeVar("_FormT", bound="AudioForm")


class AudioForm(RequestModel):
    """Fields of both routes, beside `file`."""

    refused: ClassVar[Refused] = {
        "timestamp_granularities[]": ((), _NO_TIMES),
        "include[]": ((), "not supported: /v1/chat/completions has logprobs"),
        "known_speaker_names[]": _NO_SPEAKERS,
        "known_speaker_references[]": _NO_SPEAKERS,
        "keywords[]": ((), "not supported: write the words in prompt"),
        "languages[]": ((), "not supported: name one language"),
    }
    formats: ClassVar[tuple[str, ...]] = ("json", "text", "verbose_json")

    model: str | None = None
    prompt: str | None = Field(
        None, max_length=MAX_PROMPT_CHARS, description="words that may occur, or what was said before"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="default 0")
    response_format: str = Field("json", json_schema_extra={"enum": [*formats]})

    def check(self) -> None:
        """Raise `ApiError` 400 for a form of the answer that cannot be made."""
        if self.response_format in ("srt", "vtt"):
            raise bad_request(
                f"response_format={self.response_format} is {_NO_TIMES}; take {_list(self.formats)}",
                "response_format",
                code="unsupported_parameter",
            )
        if self.response_format not in self.formats:
            shown = self.response_format[:60]
            raise bad_request(f"response_format must be {_list(self.formats)}, got {shown!r}", "response_format")


class TranslationForm(AudioForm):
    """`POST /v1/audio/translations`."""


class TranscriptionForm(AudioForm):
    """`POST /v1/audio/transcriptions`."""

    language: str | None = Field(None, description="of the speech, in ISO 639-1, such as `en`")
    stream: bool = Field(False, description="send pieces of the text as events")
    chunking_strategy: Literal["auto"] | None = Field(
        None, description="long audio is always divided where it is quiet, if the model's window is short"
    )

    def check(self) -> None:
        super().check()
        if self.language is not None and self.language not in find_languages():
            shown = self.language[:20]
            raise bad_request(f"language must be one of ISO 639-1, such as 'en' or 'de', got {shown!r}", "language")
        if self.response_format != "verbose_json":
            return
        if self.language is None:
            message = "response_format=verbose_json states the language, which the model does not: give it as language"
            raise bad_request(message, "language")
        if self.stream:
            raise bad_request("stream=true has events instead of verbose_json: take json", "response_format")


def find_languages() -> dict[str, str]:
    """Return names of languages by their codes. Imports Transformers."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    names: dict[str, str] = LANGUAGES
    return names


async def read_form(http: Request, kind: type[_FormT]) -> tuple[bytes, _FormT]:
    """Return the content of `file`, and the other fields. Raises `ApiError` 400 that names the field at fault."""
    try:
        async with http.form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=4 * MAX_PROMPT_CHARS) as form:
            upload, fields = form.get("file"), _read_fields(form)
            if not isinstance(upload, UploadFile):
                raise bad_request("file: a file of audio is required, as multipart/form-data", "file")
            made = _make(http, fields, kind)
            return await upload.read(), made
    except ClientDisconnect:
        raise ClientGoneError from None


def _read_fields(form: FormData) -> dict[str, str]:
    """Return the fields beside `file`. Raises `ApiError` 400 for one that is a file, or there twice."""
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if name == "file":
            continue
        if not isinstance(value, str):
            raise bad_request(f"{name[:60]} must be a text, got a file", name[:60])
        if name in fields and not name.endswith("[]"):
            raise bad_request(f"{name[:60]} is there twice", name[:60])
        fields[name] = value
    return fields


def _make(http: Request, fields: dict[str, str], kind: type[_FormT]) -> _FormT:
    if http.app.state.server.settings.unknown_fields == "ignore":
        http.scope["state"]["ignored_fields"] = drop_unknown(fields, kind)
    try:
        form = kind.model_validate_strings(fields, strict=False)
    except ValidationError as error:
        raise explain_invalid(error.errors(include_url=False), fields) from None
    form.check()
    return form


def describe_form(kind: type[AudioForm]) -> dict[str, Any]:
    """Return the OpenAPI description of a route that takes this form."""
    schema = kind.model_json_schema()
    properties = {"file": {"type": "string", "format": "binary"}, **schema["properties"]}
    described = {**schema, "properties": properties, "required": ["file"]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": described}}}}


def _list(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1]))
