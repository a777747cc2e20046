"""Families from outside: installed packages, files and modules that the process's owner names, and module maps."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seesay import EngineConfig, GenerationConfig, cli, pipeline
from seesay.checkpoint import Checkpoint
from seesay.config.plain import as_plain
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError, ConfigError
from seesay.vl import plugins
from seesay.vl.families.llava import Llava
from seesay.vl.families.text import LlamaLike
from seesay.vl.registry import find_family, open_registry
from seesay.vl.text_family import TextFamily

TEXT = """
from seesay.vl.text_family import TextFamily

class Mine(TextFamily):
    architectures = {architectures!r}
"""
EVEN = """
from dataclasses import fields

from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.vl.text_family import TextFamily
from seesay.vl.family import Backbone


class EvenDecoder(ComposedDecoder):
    def logits(self, hidden):
        logits = super().logits(hidden)
        logits[:, 1::2] = -1e4
        return logits


class EvenBackbone(Backbone):
    def load_decoder(self, checkpoint, *, session_len, device, dtype, **options):
        config = self.decoder_config(session_len=session_len, **options)
        return EvenDecoder.load(checkpoint, config, decoder_name=self.decoder_name, device=device, dtype=dtype)


class Even(TextFamily):
    architectures = ("EvenForCausalLM",)

    def backbone(self):
        own = super().backbone()
        return EvenBackbone(**{field.name: getattr(own, field.name) for field in fields(own)})
"""
"""A decoder of its own, which never says a token of an odd number."""


def write(path: Path, *architectures: str) -> str:
    path.write_text(TEXT.format(architectures=architectures))
    return str(path)


def rename(source: Path, target: Path, architecture: str) -> Path:
    """A copy of a checkpoint that says it is of another architecture."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return target


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """`install(name, source)` installs the package `name` of version 1.0, whose families are `source`."""
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    plugins.load_packages.cache_clear()

    def put(name: str, source: str, value: str | None = None) -> str:
        folder = tmp_path / "installed"
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(source)
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{plugins.ENTRY_POINTS}]\nfamilies = {value or name}\n")
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
        plugins.load_packages.cache_clear()
        return f"package {name} 1.0"

    yield put
    plugins.load_packages.cache_clear()


# --- installed packages -----------------------------------------------------------------------------------------------


def test_families_of_an_installed_package(install: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    origin = install("seesay_one", TEXT.format(architectures=("OneForCausalLM", "OtherForCausalLM")))
    registry = open_registry()
    assert find_family("OneForCausalLM", registry=registry).__module__ == "seesay_one"
    assert [plugin.origin for plugin in registry.plugins] == [origin]
    with pytest.raises(CheckpointError, match="'OneForCausalLM' is not supported"):
        find_family("OneForCausalLM")  # ours alone
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = lines.index(f"model families of {origin}")
    assert lines[found + 1].split() == ["seesay_one", "text", "OneForCausalLM"]
    assert lines[found + 2].split() == ["OtherForCausalLM"]


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        ("import no_such_module_at_all", None, "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)", None, "SystemExit: 3"),
        ("x = 1", None, "ValueError: seesay_broken declares no Family"),
        (TEXT.format(architectures=("A",)), "seesay_broken:Mine", "must name a module, got 'seesay_broken:Mine'"),
    ],
)
def test_a_broken_package_stops_no_other_model(
    source: str,
    value: str | None,
    reason: str,
    install: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    origin = install("seesay_broken", source, value)
    registry = open_registry()
    assert find_family("LlamaForCausalLM", registry=registry) is LlamaLike
    [record] = caplog.records
    assert record.levelno == logging.WARNING and origin in record.getMessage() and reason in record.getMessage()
    with pytest.raises(CheckpointError, match=f"'Unknown' is not supported; .*; not usable: {origin}"):
        find_family("Unknown", registry=registry)
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out.partition("model families that cannot be used\n")[2].splitlines()[0]
    assert listed.startswith(f"  {origin}: ") and reason in listed


def test_a_package_that_claims_a_model_of_ours(install: Callable[..., str], tmp_path: Path) -> None:
    """It is refused, naming both, where a checkpoint is such a model; who names it on purpose gets it."""
    source = TEXT.format(architectures=("LlamaForCausalLM", "OneForCausalLM", "InternVLChatModel"))
    origin = install("seesay_claiming", source)
    registry = open_registry()
    for contested in ("LlamaForCausalLM", "InternVLChatModel"):
        with pytest.raises(ConfigError, match=f"{contested} is claimed by both seesay and {origin}: uninstall"):
            find_family(contested, registry=registry)
        assert contested not in registry.readers
    assert find_family("OneForCausalLM", registry=registry).__name__ == "Mine"
    assert find_family("Qwen2ForCausalLM", registry=registry) is LlamaLike
    chosen = open_registry(["seesay_claiming"])
    assert find_family("LlamaForCausalLM", registry=chosen).__module__ == "seesay_claiming"


def test_two_packages_that_claim_the_same(install: Callable[..., str]) -> None:
    first = install("seesay_first", TEXT.format(architectures=("OneForCausalLM",)))
    second = install("seesay_second", TEXT.format(architectures=("OneForCausalLM",)))
    with pytest.raises(ConfigError, match=f"OneForCausalLM is claimed by both {first} and {second}"):
        find_family("OneForCausalLM", registry=open_registry())


# --- files and modules that are named ---------------------------------------------------------------------------------


def test_a_named_file_outranks_ours(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", "LlavaForConditionalGeneration", "LlavaLlamaForCausalLM")
    registry = open_registry([file])
    for tower in ("", "pixtral"):  # of ours, another family claims this one
        assert find_family("LlavaForConditionalGeneration", tower, registry).__name__ == "Mine"
    assert find_family("LlavaForConditionalGeneration") is Llava
    assert [plugin.origin for plugin in registry.plugins] == [f"file {file}"]
    assert {"LlavaForConditionalGeneration", "LlavaLlamaForCausalLM"} == registry.readers.keys()


def test_a_named_file_that_claims_a_tower(tmp_path: Path) -> None:
    registry = open_registry([write(tmp_path / "mine.py", "LlavaForConditionalGeneration/mine")])
    assert find_family("LlavaForConditionalGeneration", "mine", registry).__name__ == "Mine"
    assert find_family("LlavaForConditionalGeneration", "clip_vision_model", registry) is Llava
    assert find_family("LlavaForConditionalGeneration", "pixtral", registry).__name__ == "Pixtral"


def test_a_file_is_run_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    first = find_family("A", registry=open_registry([write(path, "A")]))
    assert find_family("A", registry=open_registry([path])) is first
    assert find_family("A", registry=open_registry([os.path.relpath(path)])) is first
    write(path, "B")
    os.utime(path, ns=(1, 1))
    assert find_family("B", registry=open_registry([path])).architectures == ("B",)


def test_two_named_files_that_claim_the_same(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = write(tmp_path / "mine.py", "A"), write(tmp_path / "other" / "mine.py", "A")
    with pytest.raises(ConfigError, match=f"architecture A is claimed by both file {one} and file {two}"):
        open_registry([one, two])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"plugins=.*mine\.py: there is no such file"),
        ("import no_such_module_at_all", r"mine\.py cannot be imported: ModuleNotFoundError: No module named 'no_such"),
        ("1 +", r"mine\.py cannot be imported: SyntaxError"),
        ("exit()", r"mine\.py cannot be imported: SystemExit"),
        ("from seesay.vl.families.llava import Llava", r"mine\.py: seesay_plugin_\w+\.mine declares no Family"),
    ],
)
def test_a_named_file_that_cannot_be_used_stops(source: str | None, message: str, tmp_path: Path) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        open_registry([tmp_path / "mine.py"])


def test_errors_on_the_command_line_name_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", "--plugin", str(tmp_path / "no.py"), "--prompt", "hi"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"seesay: error: --plugin={tmp_path}/no.py: there")
    assert cli.main(["list", "--plugin", "no_such_module_at_all"]) == 1
    assert "--plugin=no_such_module_at_all cannot be imported" in capsys.readouterr().err


def test_a_file_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "mine.py", "MineForCausalLM")
    assert cli.main(["list", "--plugin", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index(f"model families of file {file}") + 1].split() == ["mine", "text", "MineForCausalLM"]


def test_families_of_a_file_are_listed_by_what_they_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "from seesay.vl.families.internvl import InternVL\n" + TEXT.format(architectures=("WordsForCausalLM",))
    file = tmp_path / "mine.py"
    file.write_text(f"{source}\nclass Pictures(InternVL):\n    architectures = ('PicturesForCausalLM',)\n")
    assert cli.main(["list", "--plugin", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mine", "text", "WordsForCausalLM"] in lines
    assert ["mine", "text,", "image,", "video", "PicturesForCausalLM"] in lines


# --- module maps ------------------------------------------------------------------------------------------------------

MAP = """
from seesay.vl.families.llava import Llava
from seesay.vl.text_family import TextFamily

class Mine(TextFamily):
    pass

MODULE_MAP = {"OneForCausalLM": "Mine", "LlamaForCausalLM": Mine}
CUSTOM_MODULE_MAP = {"TwoForConditionalGeneration": "seesay.vl.families.llava.Llava"}
"""


def test_a_module_map_outranks_all(tmp_path: Path) -> None:
    (tmp_path / "map.py").write_text(MAP)
    plugin = write(tmp_path / "mine.py", "OneForCausalLM")
    registry = open_registry([plugin], tmp_path / "map.py")
    for architecture in ("OneForCausalLM", "LlamaForCausalLM"):
        assert find_family(architecture, registry=registry).__module__.endswith(".map")
    assert find_family("TwoForConditionalGeneration", registry=registry) is Llava
    given = open_registry((), {"ThreeForCausalLM": "seesay.vl.text_family.TextFamily"})
    assert find_family("ThreeForCausalLM", registry=given) is TextFamily


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"custom_module_map: .*map\.py has no dict MODULE_MAP"),
        ("MODULE_MAP = ['a']", "has no dict MODULE_MAP"),
        ("MODULE_MAP = {'A': 'Nowhere'}", "custom_module_map: A: there is no 'Nowhere'"),
        ("MODULE_MAP = {'A': 'no_such_module_at_all.B'}", "A: no_such_module_at_all cannot be imported"),
        ("import torch\nMODULE_MAP = {'A': 'torch.nn.Linear'}", "A: 'torch.nn.Linear' is not a Family"),
        ("MODULE_MAP = {'A': 3}", "A: 3 is not a Family"),
    ],
)
def test_a_module_map_that_makes_no_sense(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "map.py").write_text(source)
    with pytest.raises(ConfigError, match=message):
        open_registry((), tmp_path / "map.py")


# --- models that are served -------------------------------------------------------------------------------------------


def test_configurations_with_plugins_cross_processes(tmp_path: Path) -> None:
    config = EngineConfig(plugins=[tmp_path / "mine.py", "my_module"], custom_module_map=tmp_path / "map.py")
    plain = as_plain("backend_config", config)
    assert plain["plugins"] == [str(tmp_path / "mine.py"), "my_module"]
    assert EngineConfig(**json.loads(json.dumps(plain))).custom_module_map == str(tmp_path / "map.py")
    assert plugins.make_absolute(["mine.py", "my_module"]) == [str(Path("mine.py").absolute()), "my_module"]


def test_a_checkpoint_cannot_name_a_plugin(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Not in its config.json, nor by a file in its folder."""
    folder = rename(tiny_checkpoint("llama"), tmp_path / "model", "MineForCausalLM")
    file = write(folder / "mine.py", "MineForCausalLM")
    config = json.loads((folder / "config.json").read_text())
    more = {"plugins": [file], "custom_module_map": file, "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps({**config, **more}))
    with pytest.raises(CheckpointError, match="'MineForCausalLM' is neither one of ours"):
        open_model(folder, EngineConfig())
    assert open_model(folder, EngineConfig(plugins=[file])).family.name == "mine"


@pytest.mark.parametrize("engine_process", [False, True])
def test_a_decoder_of_its_own(engine_process: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = rename(tiny_checkpoint("llama"), tmp_path / "model", "EvenForCausalLM")
    file = tmp_path / "even.py"
    file.write_text(EVEN)
    config = EngineConfig(device_type="cpu", plugins=[file], engine_process=engine_process)
    options = GenerationConfig(max_new_tokens=8, ignore_eos=True)
    with pipeline(str(folder), config) as pipe:
        answers = pipe(["the thing", "the other"], gen_config=options)
        pipe.update_weights(folder)
        again = pipe("the thing", gen_config=options)
    assert all(len(answer.token_ids) == 8 and not any(id % 2 for id in answer.token_ids) for answer in answers)
    assert again.token_ids == answers[0].token_ids


def test_a_family_reads_its_own_configuration(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = rename(tiny_checkpoint("llama"), tmp_path / "model", "OwnForCausalLM")
    config = json.loads((folder / "config.json").read_text())
    config = {"architectures": ["OwnForCausalLM"], "model_type": "my_own", "sizes": config, "tone": 7}
    (folder / "config.json").write_text(json.dumps(config))
    source = """
from seesay.checkpoint import ConvertedConfig
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.vl.text_family import TextFamily

class Own(TextFamily):
    architectures = ("OwnForCausalLM",)

    @classmethod
    def read_config(cls, config):
        return ConvertedConfig(config={**config["sizes"], "model_type": "llama"})
"""
    (tmp_path / "own.py").write_text(source)
    model = open_model(folder, EngineConfig(plugins=[tmp_path / "own.py"]))
    assert model.checkpoint.architecture == "OwnForCausalLM" and model.checkpoint.config["tone"] == 7
    assert model.hidden_size == Checkpoint.load(tiny_checkpoint("llama")).model_config.hidden_size
    del config["sizes"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot be built from its files: KeyError: 'sizes'"):
        open_model(folder, EngineConfig(plugins=[tmp_path / "own.py"]))
