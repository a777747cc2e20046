"""The options for loading and running a model, made of the fields of `EngineConfig`, of a few of `VisionConfig` and of
`SpeculativeConfig`.

A field and its description in the class's docstring give an option with its type, help and default. The tables here
hold the exceptions: LMDeploy's names, and values that argparse cannot read from the annotation. An option that is not
used is not passed on: the configurations alone have the defaults.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from seesay.commands.arguments.options import add_plugins, integer, number, or_none, whole
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import ChatTemplateConfig, EngineConfig, VisionConfig


@dataclass(frozen=True, slots=True)
class EngineOption:
    """An option of the command line for one field (`target`) of a configuration.

    kind: arguments of `add_argument`. read: turns the parsed value into that of the field.
    """

    name: str
    target: str
    help: str
    kind: Mapping[str, Any]
    read: Callable[[Any], object] | None = None

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        group.add_argument(self.name, default=argparse.SUPPRESS, help=self.help.replace("%", "%%"), **self.kind)

    def read_from(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return {field: value}, or nothing if the option was not used."""
        found = vars(arguments)
        dest = self.name.removeprefix("--").replace("-", "_")
        if dest not in found:
            return {}
        return {self.target: found[dest] if self.read is None else self.read(found[dest])}


def _read_adapters(pairs: Sequence[str]) -> dict[str, str] | None:
    adapters = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        adapters[name if equals else "default"] = path if equals else pair
    return adapters or None


def _read_overrides(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--hf-overrides must be valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'--hf-overrides must be a JSON object, such as {{"rope_theta": 10000.0}}, got {text!r:.80}')
    return value


def _read_map(text: str) -> object:
    return json.loads(text) if text.lstrip().startswith("{") else text


_NAMES = {"device_type": "--device", "block_size": "--cache-block-seq-len", "step_timeout_s": "--step-timeout"}
"""Options that LMDeploy calls otherwise, or that name no unit. Any other is called as its field."""
_WITHOUT_OPTION = ("plugins", "prefill_interval", "speculative", "thread_safe")
"""`--plugin` is an option of all commands, `speculative` is several; the others exist for LMDeploy's scripts alone."""
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "adapters": {"nargs": "*", "metavar": "NAME=PATH"},
    "custom_module_map": {"metavar": "FILE"},
    "hf_overrides": {"metavar": "JSON"},
    "max_step_ms": {"type": or_none(whole(1)), "metavar": "MS"},
    "quantization": {"metavar": "{fp8,int8}"},  # its error says how to get 4 bits
    "pp": {"type": integer, "metavar": "N"},
    "tp": {"type": integer, "metavar": "N"},
}
_READERS: Mapping[str, Callable[[Any], object]] = {
    "adapters": _read_adapters,
    "custom_module_map": _read_map,
    "hf_overrides": _read_overrides,
}
_METAVARS = {
    "cache_max_entry_count": "SHARE",
    "device": "NAME",
    "device_type": "NAME",
    "download_dir": "FOLDER",
    "logits_processor_pattern": "REGEX",
    "record": "FILE",
    "revision": "NAME",
    "rope_scaling_factor": "FACTOR",
    "step_timeout_s": "S",
}
_OF_VISION = {
    "max_batch_size": "--vision-max-batch-size",
    "device": "--encoder-device",
    "own_process": "--encoder-process",
    "transparency": "--transparency",
}
"""The fields of `VisionConfig` that are options."""
_OF_SPECULATION = {
    "method": "--speculative-algorithm",
    "model": "--speculative-draft-model",
    "num_speculative_tokens": "--speculative-num-draft-tokens",
}
"""The fields of `SpeculativeConfig`, by LMDeploy's names."""


def engine_options() -> tuple[EngineOption, ...]:
    """Return the options of `EngineConfig`, one for each field."""
    from seesay.config import EngineConfig

    names = {each.name: "--" + each.name.replace("_", "-") for each in fields(EngineConfig)}
    return _make_options(EngineConfig, {name: _NAMES.get(name, own) for name, own in names.items()})


def vision_options() -> tuple[EngineOption, ...]:
    """Return the options of `VisionConfig`."""
    from seesay.config import VisionConfig

    return _make_options(VisionConfig, _OF_VISION)


def speculation_options() -> tuple[EngineOption, ...]:
    """Return the options of `SpeculativeConfig`."""
    from seesay.config import SpeculativeConfig

    return _make_options(SpeculativeConfig, _OF_SPECULATION)


def describe_default(field: Field[Any]) -> str:
    """Return the default of a field as a user writes it; empty for None, which its description explains."""
    if field.default is MISSING or field.default is None or field.default == ():
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return str(field.default)


def _make_options(config: type, names: Mapping[str, str]) -> tuple[EngineOption, ...]:
    from seesay.config.descriptions import describe_fields

    hints, help = get_type_hints(config), describe_fields(config)
    options = []
    for each in fields(config):
        if each.name in names and each.name not in _WITHOUT_OPTION:
            default = describe_default(each)
            text = help.get(each.name, "") + (f" (default: {default})" if default else "")
            kind = _KINDS.get(each.name) or _kind_of(each, hints[each.name])
            options.append(EngineOption(names[each.name], each.name, text, kind, _READERS.get(each.name)))
    return tuple(options)


def _kind_of(field: Field[Any], hint: object) -> dict[str, object]:
    """Return the arguments of `add_argument` for a field of this type."""
    kinds = _alternatives(hint)
    if kinds == [bool]:
        return {"action": "store_true"} if field.default is False else {"action": argparse.BooleanOptionalAction}
    if choices := _list_choices(kinds):
        return {"choices": choices, "type": type(choices[0])}
    if kinds == [int]:
        metavar = "TOKENS" if _counts_tokens(field.name) else "N"
        return {"type": whole(0 if field.default == 0 else 1), "metavar": metavar}
    return {"type": number if kinds == [float] else str, "metavar": _METAVARS.get(field.name, "VALUE")}


def _counts_tokens(name: str) -> bool:
    return name.endswith(("_len", "_size", "token_num")) and "batch" not in name


def _alternatives(hint: object) -> list[object]:
    """Return the types of a field but None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [kind for kind in kinds if kind is not type(None)]


def _list_choices(kinds: Sequence[object]) -> list[Any]:
    """Return the values that a field may have, if its types name them all."""
    if not all(get_origin(kind) is Literal for kind in kinds):
        return []
    return [choice for kind in kinds for choice in get_args(kind)]


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for loading and running the model."""
    group = parser.add_argument_group("engine", "None in a description stands for an option that is left out.")
    for option in (*engine_options(), *vision_options(), *speculation_options()):
        option.add_to(group)
    add_plugins(group)
    group.add_argument(
        "--backend",
        choices=("pytorch", "turbomind"),
        default="pytorch",
        help="accepted for LMDeploy's users; both names select the same engine",
    )
    group.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help="name of a built-in template (`seesay list`), a JSON file with pieces, a Jinja file, or a model folder",
    )


def make_engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Return the engine's configuration. Raises ConfigError that names the option."""
    from seesay.config import EngineConfig, SpeculativeConfig

    others: dict[str, Any] = {"plugins": arguments.plugin} if arguments.plugin else {}
    if speculation := _read(speculation_options(), arguments):
        others["speculative"] = SpeculativeConfig(**speculation)
    return EngineConfig(**_read(engine_options(), arguments), **others)


def make_vision_config(arguments: argparse.Namespace) -> VisionConfig:
    """Return the vision configuration."""
    from seesay.config import VisionConfig

    return VisionConfig(**_read(vision_options(), arguments))


def make_chat_template_config(arguments: argparse.Namespace) -> ChatTemplateConfig | None:
    """Return the configuration of the chosen chat template, or None for the checkpoint's own. Raises ConfigError for a
    name that does not exist, and for a file that is missing or not valid."""
    from seesay.errors import ConfigError
    from seesay.templates import check_choice

    if arguments.chat_template is None:
        return None
    try:
        return check_choice(arguments.chat_template)
    except ConfigError as error:
        raise ConfigError(
            f"--chat-template: {error}".replace("--chat-template: model_name=", "--chat-template ", 1)
        ) from None


def _read(table: Sequence[EngineOption], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields whose options were used."""
    return {name: value for option in table for name, value in option.read_from(arguments).items()}
