"""The options for loading and running a model, as tables, and the configurations made of them. Names are LMDeploy's.

An option that is not given is not passed on: the configurations alone have the defaults.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seesay.commands.options import add_plugins, number, or_none, whole
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import ChatTemplateConfig, EngineConfig, VisionConfig


@dataclass(frozen=True, slots=True)
class _Option:
    """An option for one field (`target`) of a configuration.

    given: further arguments of `add_argument`. read: turns the parsed value into that of the field.
    """

    name: str
    target: str
    help: str
    given: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Any], Any] | None = None

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        group.add_argument(self.name, default=argparse.SUPPRESS, help=self.help, **self.given)

    def read_from(self, arguments: argparse.Namespace) -> dict[str, Any]:
        """Return {field: value}, or nothing if the option was not given."""
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


def _read_overrides(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--hf-overrides must be valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'--hf-overrides must be a JSON object, such as {{"rope_theta": 10000.0}}, got {text!r:.80}')
    return value


def _count(least: int, metavar: str) -> dict[str, Any]:
    return {"type": whole(least), "metavar": metavar}


_ON: Mapping[str, Any] = {"action": "store_true"}
_ON_OR_OFF: Mapping[str, Any] = {"action": argparse.BooleanOptionalAction}

_ENGINE = (
    _Option("--device", "device_type", "auto, cpu, cuda or cuda:N (default: auto)", {"metavar": "NAME"}),
    _Option(
        "--dtype",
        "dtype",
        "dtype of the weights (default: auto, the checkpoint's)",
        {"choices": ("auto", "float16", "bfloat16", "float32")},
    ),
    _Option("--tp", "tp", "GPUs for one model; only 1 is supported", {"type": int, "metavar": "N"}),
    _Option(
        "--session-len",
        "session_len",
        "longest prompt and answer together (default: the model's limit)",
        _count(1, "TOKENS"),
    ),
    _Option(
        "--rope-scaling-factor",
        "rope_scaling_factor",
        "dynamic NTK with this factor for prompts that are longer than the model was trained for (default: 0, the "
        "checkpoint's own scaling)",
        {"type": number, "metavar": "FACTOR"},
    ),
    _Option(
        "--use-logn-attn",
        "use_logn_attn",
        "scale attention by the logarithm of the place beyond the trained length",
        _ON,
    ),
    _Option(
        "--max-batch-size",
        "max_batch_size",
        "largest number of sequences in a step (default: 512 on a GPU, 32 on the CPU)",
        _count(1, "N"),
    ),
    _Option(
        "--cache-max-entry-count",
        "cache_max_entry_count",
        "share of free memory for the KV cache (default: 0.8)",
        {"type": number, "metavar": "SHARE"},
    ),
    _Option(
        "--num-cpu-blocks",
        "num_cpu_blocks",
        "KV blocks in host memory, for blocks evicted from the GPU (default: 0)",
        _count(0, "N"),
    ),
    _Option("--cache-block-seq-len", "block_size", "tokens in a KV block (default: 64)", _count(1, "TOKENS")),
    _Option(
        "--max-prefill-token-num",
        "max_prefill_token_num",
        "token budget of a step (default: 8192)",
        _count(1, "TOKENS"),
    ),
    _Option(
        "--max-step-ms",
        "max_step_ms",
        "longest step beside streamed answers, sized by its predicted duration; 'none' or 0: a fixed number of prompt "
        "tokens (default: 40 on a GPU, none on the CPU)",
        {"type": or_none(whole(1)), "metavar": "MS"},
    ),
    _Option(
        "--enable-prefix-caching",
        "enable_prefix_caching",
        "reuse the KV cache of equal prompt prefixes, pictures included (default: on)",
        _ON_OR_OFF,
    ),
    _Option("--eager-mode", "eager_mode", "never capture CUDA graphs", _ON),
    _Option(
        "--jump-ahead",
        "jump_ahead",
        "compute text that a grammar leaves no choice about several tokens at a time (default: on a CPU)",
        _ON_OR_OFF,
    ),
    _Option(
        "--engine-process", "engine_process", "run the engine in a process of its own (default: on a GPU)", _ON_OR_OFF
    ),
    _Option(
        "--step-timeout",
        "step_timeout_s",
        "a step that takes longer is treated as hung, in seconds (default: 120 on a GPU, 3600 on the CPU)",
        {"type": number, "metavar": "S"},
    ),
    _Option(
        "--logits-processor-pattern",
        "logits_processor_pattern",
        "requests may name logits processors ('package.module:function') that this regular expression matches as a "
        "whole; importing one runs its code (default: none)",
        {"metavar": "REGEX"},
    ),
    _Option(
        "--quantization",
        "quantization",
        "quantize the language model's linear layers to fp8 or int8 while they are loaded (default: take them as they "
        "are; for 4 bits see `seesay lite auto_awq`)",
        {"metavar": "{fp8,int8}"},
    ),
    _Option(
        "--unpacked-copy",
        "unpacked_copy",
        "keep packed weights (AWQ, GPTQ, pack-quantized) multiplied out, too, so that prompts take the time of plain "
        "weights (default: on a GPU where the copy takes at most an eighth of the memory)",
        _ON_OR_OFF,
    ),
    _Option(
        "--model-format",
        "model_format",
        "format of the checkpoint's weights; checked against its config.json (default: what that says)",
        {"choices": ("hf", "awq", "gptq", "compressed-tensors", "fp8")},
    ),
    _Option(
        "--quant-policy",
        "quant_policy",
        "LMDeploy's name for --kv-cache-dtype: 8 is int8, 4 is int4 (default: 0, leave it to that)",
        {"type": int, "choices": (0, 4, 8)},
    ),
    _Option(
        "--kv-cache-dtype",
        "kv_cache_dtype",
        "dtype of the KV cache (default: auto, what the checkpoint asks for, else the dtype of the weights)",
        {"choices": ("auto", "fp8", "fp8_e4m3", "int8", "int4")},
    ),
    _Option("--adapters", "adapters", "not supported yet", {"nargs": "*", "metavar": "NAME=PATH"}, read=_read_adapters),
    _Option(
        "--disable-vision-encoder",
        "disable_vision_encoder",
        "do not load the vision tower; pictures are refused",
        _ON,
    ),
    _Option("--revision", "revision", "branch, tag or commit of a hub model", {"metavar": "NAME"}),
    _Option("--download-dir", "download_dir", "folder for downloads from the hub", {"metavar": "FOLDER"}),
    _Option(
        "--hf-overrides",
        "hf_overrides",
        "values that replace those in the checkpoint's config.json",
        {"metavar": "JSON"},
        read=_read_overrides,
    ),
    _Option(
        "--trust-remote-code",
        "trust_remote_code",
        "run the checkpoint's own code, of its tokenizer or of an unknown model; only if you trust it",
        _ON,
    ),
)
_VISION = (
    _Option(
        "--vision-max-batch-size",
        "max_batch_size",
        "largest number of pictures in one call of the vision tower (default: 8)",
        _count(1, "N"),
    ),
    _Option(
        "--transparency",
        "transparency",
        "transparent pictures: put them on white, or drop the alpha channel (default: white)",
        {"choices": ("white", "drop")},
    ),
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for loading and running the model."""
    group = parser.add_argument_group("engine")
    for option in (*_ENGINE, *_VISION):
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
    from seesay.config import EngineConfig

    plugins = {"plugins": arguments.plugin} if arguments.plugin else {}
    return EngineConfig(**_read(_ENGINE, arguments), **plugins)


def make_vision_config(arguments: argparse.Namespace) -> VisionConfig:
    """Return the vision configuration."""
    from seesay.config import VisionConfig

    return VisionConfig(**_read(_VISION, arguments))


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


def _read(table: Sequence[_Option], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields whose options were given."""
    return {name: value for option in table for name, value in option.read_from(arguments).items()}
