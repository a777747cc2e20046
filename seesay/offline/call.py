"""The arguments that all calls of a pipeline take, checked and parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from seesay.config import GenerationConfig
from seesay.errors import RequestError
from seesay.offline.deprecated import with_call_arguments
from seesay.offline.template_options import take_template_options, with_template_options
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

AdapterNames = str | Sequence[str | None] | None
GenConfigs = GenerationConfig | Sequence[GenerationConfig] | None


class Call(NamedTuple):
    """The requests of a call, or why one is refused; `is_list`: whether the argument was a list of prompts."""

    requests: list[GenerationRequest | RequestError]
    is_list: bool

    @classmethod
    def parse(
        cls,
        prompts: object,
        gen_config: GenConfigs,
        do_preprocess: bool,
        adapter_name: AdapterNames,
        arguments: Mapping[str, object],
        function: str,
    ) -> Call:
        """Parse the arguments of `function`; `arguments` are those that it does not name itself. Raises ConfigError,
        TypeError and ValueError for what no request can have."""
        fields, others = take_template_options(arguments, do_preprocess=do_preprocess)
        gen_config = with_call_arguments(gen_config, others, function=function)
        requests, is_list = parse_prompts(prompts, gen_config, do_preprocess=do_preprocess)
        return cls(_with_adapters(with_template_options(requests, fields), adapter_name), is_list)


def _with_adapters(
    requests: list[GenerationRequest | RequestError], names: AdapterNames
) -> list[GenerationRequest | RequestError]:
    """Return the requests with their adapters: one for all, or one for each."""
    if names is None:
        return requests
    each = [names] * len(requests) if isinstance(names, str) else list(names)
    if len(each) != len(requests):
        raise ValueError(f"adapter_name: {len(each)} for {len(requests)} prompts; give one for all or one for each")
    if not all(name is None or isinstance(name, str) for name in each):
        raise TypeError("adapter_name must be a name, or a list of names and None")
    return [
        replace(request, adapter_name=name) if isinstance(request, GenerationRequest) else request
        for request, name in zip(requests, each, strict=True)
    ]
