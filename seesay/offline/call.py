"""The arguments that all calls of a pipeline take, checked and parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seesay.config import GenerationConfig
from seesay.errors import ConfigError, RequestError
from seesay.offline.deprecated import with_call_arguments
from seesay.offline.template_options import take_template_options, with_template_options
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_prompts

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
        adapter_name: str | None,
        arguments: Mapping[str, object],
        function: str,
    ) -> Call:
        """Parse the arguments of `function`; `arguments` are those that it does not name itself. Raises ConfigError,
        TypeError and ValueError for what no request can have."""
        if adapter_name is not None:
            raise ConfigError(f"adapter_name={adapter_name!r} is not supported: adapters cannot be loaded")
        fields, others = take_template_options(arguments, do_preprocess=do_preprocess)
        gen_config = with_call_arguments(gen_config, others, function=function)
        requests, is_list = parse_prompts(prompts, gen_config, do_preprocess=do_preprocess)
        return cls(with_template_options(requests, fields), is_list)
