"""One field of a configuration gives an option, a row of the page of options and help. It is documented, and read.

A new field without a description, or one that nothing reads, fails here. `--refresh-docs` writes docs/options.md.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

import seesay
from seesay import EngineConfig, GenerationConfig, VisionConfig, pipeline
from seesay.cli import make_parser
from seesay.commands.arguments import engine_options
from seesay.commands.arguments.options_page import make_options_page
from seesay.config.descriptions import describe_fields
from seesay.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
SAMPLES: Mapping[str, tuple[list[str], Any]] = {
    "tp": (["2"], 2),
    "pp": (["2"], 2),
    "adapters": (["small=folder", "other"], {"small": "folder", "default": "other"}),
    "cache_max_entry_count": (["0.5"], 0.5),
    "custom_module_map": (["map.py"], "map.py"),
    "distributed_executor_backend": (["mp"], "mp"),
    "hf_overrides": (['{"a": 1}'], {"a": 1}),
    "max_step_ms": (["7"], 7),
    "quantization": (["fp8"], "fp8"),
    "record_media": (["--record", "file"], True),
    "rope_scaling_factor": (["2"], 2.0),
    "step_timeout_s": (["1.5"], 1.5),
}
"""Values that are not found by the kind of the option."""
READ_ELSEWHERE = {"kv_cache_dtype", "quant_policy", "speculative", "tp", "distributed_executor_backend"}
"""The engine reads them as `EngineConfig.kv_format`, `speculation` and `num_ranks`, and the last where there are
several ranks."""
NO_EFFECT = {"thread_safe"}
"""LMDeploy's option: the engine is thread-safe with either value, as its description says."""
REFUSED: Mapping[str, Any] = {"prefill_interval": 1}
"""Options that are not supported, and a value that is refused by name."""


@pytest.mark.parametrize("config", [EngineConfig, VisionConfig])
def test_every_field_is_documented(config: Any) -> None:
    missing = [field.name for field in fields(config) if not describe_fields(config).get(field.name)]
    assert not missing, f"{config.__name__}: describe {missing} in the docstring, a line `name: text` each"


def test_every_field_is_an_option() -> None:
    targets = [option.target for option in engine_options.engine_options()]
    without = {field.name for field in fields(EngineConfig)} - {*targets}
    assert without == {*engine_options._WITHOUT_OPTION} and len(targets) == len({*targets})


@pytest.mark.parametrize("option", engine_options.engine_options(), ids=lambda option: option.target)
def test_an_option_sets_its_field(option: engine_options.EngineOption) -> None:
    words, expected = SAMPLES.get(option.target) or sample(option.kind)
    parsed = make_parser().parse_args(["chat", option.name, *words])
    assert getattr(engine_options.make_engine_config(parsed), option.target) == expected


def sample(kind: Mapping[str, Any]) -> tuple[list[str], Any]:
    """A value that an option of this kind takes, and what its field has then."""
    if "action" in kind:
        return [], True
    if "choices" in kind:
        return [str(kind["choices"][-1])], kind["choices"][-1]
    return (["cpu"], "cpu") if kind["type"] is str else (["17"], 17)


def test_the_page_has_all_options(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--refresh-docs"):
        PAGE.write_text(make_options_page(), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    assert page == make_options_page(), "run pytest tests/commands/test_engine_options.py --refresh-docs"
    assert all(f"| `{field.name}` |" in page for field in fields(EngineConfig))


def test_the_page_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is that of the cores by default."""
    monkeypatch.setattr(VisionConfig.__dataclass_fields__["thread_num"], "default", 11)
    assert make_options_page() == PAGE.read_text(encoding="utf-8")


# --- options have an effect -------------------------------------------------------------------------------------------


NAMES = {field.name for field in fields(EngineConfig)}
PACKAGE = str(Path(seesay.__file__).parent)


class ReadConfig(EngineConfig):
    """A configuration that notes which of its fields the package reads, `seesay.config` aside."""

    def __getattribute__(self, name: str) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if name in NAMES and caller.startswith(PACKAGE) and not caller.startswith(f"{PACKAGE}/config/"):
            vars(self).setdefault("read", set()).add(name)
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def read() -> Iterator[set[str]]:
    """The fields that are read while the built-in model answers."""
    config = ReadConfig(device_type="cpu", session_len=512, engine_process=False)
    with pipeline(backend_config=config) as pipe:
        pipe("hello", gen_config=GenerationConfig(max_new_tokens=2))
        yield vars(config)["read"]


def test_every_option_has_an_effect(read: set[str]) -> None:
    """An option that the engine reads, or refuses by name at any other value than its default."""
    assert len(read) > 25
    ignored = NAMES - read - READ_ELSEWHERE - NO_EFFECT - {*REFUSED}
    assert not ignored, f"nothing reads {ignored}"
    for name, value in REFUSED.items():
        with pytest.raises(ConfigError, match=name):
            EngineConfig(**{name: value})
    assert EngineConfig(quant_policy=8).kv_format == EngineConfig(kv_cache_dtype="int8").kv_format == "int8"


# --- how an option is made of a field ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example.

    depth: how deep, in tokens
        and more.
    is_fast: whether it hurries.
    mode: one of two.

    other: no field.
    """

    depth: int = 3
    is_fast: bool | None = None
    mode: Literal["a", "b"] = "a"
    share: float = 0.5
    is_new: bool = False


def test_descriptions_are_the_lines_of_the_docstring() -> None:
    described = {"depth": "how deep, in tokens and more.", "is_fast": "whether it hurries.", "mode": "one of two."}
    assert describe_fields(Example) == described
    assert describe_fields(types.new_class("Bare", (Example,))) == {}


def test_one_field_gives_an_option() -> None:
    options = engine_options._make_options(Example, {name: f"--{name}" for name in Example.__annotations__})
    assert [option.help for option in options] == [
        "how deep, in tokens and more. (default: 3)", "whether it hurries.", "one of two. (default: a)",
        " (default: 0.5)", " (default: off)",
    ]  # fmt: skip
    kinds = [option.kind for option in options]
    assert kinds[0]["type"]("5") == 5 and kinds[1]["action"] is not None and kinds[2]["choices"] == ["a", "b"]
    assert kinds[3]["type"]("0.25") == 0.25 and kinds[4] == {"action": "store_true"}
