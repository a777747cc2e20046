"""The fields by which clients of vLLM ask for a beam search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from seesay.config import BeamSearchParams, GenerationConfig
from seesay.errors import ConfigError, show
from seesay.serving.errors import bad_request, requires
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.grammar_fields import FIELD_NAMES
from seesay.serving.requests.neutral_values import describe_values
from seesay.serving.requests.request_model import RequestModel, is_same

_OFF: Mapping[str, tuple[object, ...]] = {
    "stream": (False,),
    "temperature": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "stop": ([],),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "no_repeat_ngram_size": (0,),
    "ngram_window": (0,),
    "whitelist_token_ids": ([],),
    "repetition_ngram_size": (0,),
    "logits_processors": ([],),
    "max_thinking_tokens": (),
    "thinking_token_budget": (),
    "tools": ([],),
    **dict.fromkeys(FIELD_NAMES, ()),
}
"""Fields that a search does not support: the values of each that change nothing."""


def _refuse_beside_beams() -> JsonSchemaValue:
    searches = {"required": ["use_beam_search"], "properties": {"use_beam_search": {"const": True}}}
    return {"if": searches, "then": {"properties": {name: describe_values(off) for name, off in _OFF.items()}}}


class BeamFields(RequestModel):
    """A search for the likeliest answers, which keeps `n` texts at a time, or `best_of` where a route has it.

    beam_rules: the rules of these fields, for the schemas of their routes.
    """

    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {"beam_width": ("best_of", "n")}
    beam_rules: ClassVar[tuple[JsonSchemaValue, ...]] = (
        _refuse_beside_beams(),
        {
            "if": {"required": ["length_penalty"], "properties": {"length_penalty": {"not": {"enum": [None, 1]}}}},
            "then": {"required": ["use_beam_search"], "properties": {"use_beam_search": {"const": True}}},
        },
    )

    use_beam_search: bool | None = Field(None, description="extension: search for the n likeliest answers")
    length_penalty: float | None = Field(
        None, ge=-10, le=10, description="extension: beams are ranked by log-probability / length ** this; default 1"
    )

    @model_validator(mode="after")
    def _check_beams(self) -> Self:
        if not self.use_beam_search:
            if self.length_penalty not in (None, 1.0):
                raise requires("length_penalty", "use_beam_search", self.use_beam_search)
            return self
        if getattr(self, "max_tokens", None) == 0:
            raise bad_request("max_tokens=0 cannot be combined with use_beam_search", "max_tokens")
        for name, off in _OFF.items():
            value = getattr(self, name, None)
            if value is not None and not any(is_same(value, other) for other in off):
                why = f"{name} cannot be combined with use_beam_search, got {show(value)}: leave it out"
                raise bad_request(why, name, code="unsupported_parameter")
        return self

    def make_beams(
        self, width: int, config: GenerationConfig, names: FieldNames, *, thinks: bool = False
    ) -> BeamSearchParams | None:
        """Return the search that the request asks for, of this width. thinks: whether the answers may have thoughts,
        which a search does not tell apart. Raises `ApiError` 400 in the client's names."""
        if not self.use_beam_search:
            return None
        if thinks:
            why = "use_beam_search is not supported for a model that thinks"
            raise bad_request(why, "use_beam_search", code="unsupported_parameter")
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        try:
            return BeamSearchParams(
                beam_width=width,
                max_tokens=config.max_new_tokens,
                ignore_eos=config.ignore_eos,
                length_penalty=penalty,
            )
        except ConfigError as error:
            raise names.explain(error) from error
