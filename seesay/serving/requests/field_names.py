"""The client's names of the values that the engine's errors are about.

An engine knows the options of `GenerationConfig` and one name for all prompts; a client has sent `guided_regex`,
`thinking.budget_tokens` or `input[3]`. The models of requests say which fields an option may have come from
(`RequestModel.sources`), and each error passes through here on its way to the client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from seesay.errors import ConfigError
from seesay.serving.errors import ApiError, bad_request

# Names that the engine's errors use for the prompt.
_PROMPTS = ("messages", "prompts", "input_ids")
_FIRST_NAME = re.compile(r"[A-Za-z_][\w.\[\]]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """options: the client's fields by the engine's names, where they differ; also by a path in an option, such as
    `response_format.regex`. prompts: of the prompts of several requests, or one name for all.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    prompts: Sequence[str] = ("messages",)

    def naming(self, options: Mapping[str, str]) -> Self:
        """Return these names, with others for some options."""
        return replace(self, options={**self.options, **options})

    def of(self, option: str) -> str:
        """Return the client's name of an option of the engine."""
        return self._replace(option)

    def explain(self, error: Exception, *, index: int = 0, request_id: str | None = None) -> ApiError:
        """Return the error that the client gets for one of its request `index`, in the client's names. See
        `ApiError.from_error`; a `ConfigError`, whose message begins with the option, is a 400."""
        if isinstance(error, ConfigError):
            found = _FIRST_NAME.match(str(error))
            error = bad_request(str(error), None if found is None else found.group().rstrip("."))
        else:
            error = ApiError.from_error(error, request_id=request_id)
        prompt = self.prompts[index % len(self.prompts)]
        if error.param in _PROMPTS:
            error.param = prompt
            if "[" in prompt:  # one prompt of several
                error.detail = error.message = f"{prompt}: {error.message}"
        elif error.param is not None:
            error.param = self._replace(error.param)
        error.detail = error.message = self._replace(error.message)
        return error

    def _replace(self, text: str) -> str:
        if not self.options:
            return text
        names = "|".join(map(re.escape, sorted(self.options, key=len, reverse=True)))
        return re.sub(rf"(?<![\w.])(?:{names})(?!\w)", lambda found: self.options[found.group()], text)


ENGINE_NAMES = FieldNames()
"""Of a client that uses the engine's own."""
