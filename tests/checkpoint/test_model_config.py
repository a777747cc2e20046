from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.layouts import config_conversion as stand_ins
from seesay.checkpoint.layouts.config_conversion import ConvertedConfig
from seesay.checkpoint.model_config import ModelConfig
from seesay.errors import CheckpointError
from seesay.llm.models.configs.reading import read_decoder_config

NAMES = (
    "llama", "qwen2", "qwen3", "mistral", "phi3", "phi3_longrope", "gemma", "gemma2", "gemma3", "smollm3", "qwen2_vl",
    "qwen2_5_vl", "llava", "internvl",
)  # fmt: skip


@pytest.fixture(autouse=True)
def kept_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seesay"


def assert_same(ours: ModelConfig, theirs: Any) -> None:
    from transformers import PretrainedConfig

    names = [name for name in (*vars(theirs), *theirs.attribute_map, "model_type") if not name.startswith("_")]
    assert len(names) > 10
    for name in names:
        value = getattr(theirs, name)
        if isinstance(value, PretrainedConfig):
            assert_same(getattr(ours, name), value)
        else:
            assert getattr(ours, name) == json.loads(json.dumps(value, default=str)), name


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_transformers(name: str, tiny_checkpoint: Callable[[str], Path], kept_folder: Path) -> None:
    """When they are made, and when they were kept."""
    decoders = []
    for _ in range(2):
        checkpoint = Checkpoint.load(tiny_checkpoint(name))
        ours, text = checkpoint.model_config, checkpoint.text_config
        assert len(list(kept_folder.iterdir())) == 1
        decoders.append(read_decoder_config(text, session_len=100))
        assert_same(ours, checkpoint.hf_config())
        assert_same(text, checkpoint.hf_config().get_text_config(decoder=True))
        assert type(text.to_transformers()) is type(checkpoint.hf_config().get_text_config(decoder=True))
        for wrong in ("no_such_value", "_private"):
            assert not hasattr(ours, wrong)
    assert decoders[0] == decoders[1]


def test_parts_lead_to_parts(tiny_checkpoint: Callable[[str], Path]) -> None:
    checkpoint = Checkpoint.load(tiny_checkpoint("qwen2_5_vl"))
    vision = checkpoint.model_config.vision_config
    assert vision.to_transformers() is checkpoint.hf_config().vision_config
    assert vision.patch_size == vision.to_transformers().patch_size


OPEN = """
import sys
from pathlib import Path
from seesay.config import EngineConfig
from seesay.engine.opened_model import open_model
for folder in sys.argv[1:]:
    model = open_model(Path(folder), EngineConfig())
    assert model.vocab_size > 10 and model.tokenizer.encode("the dog")
print(*[name for name in ("torch", "transformers") if name in sys.modules])
"""


def test_the_second_opening_of_a_model_imports_neither_torch_nor_transformers(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    folders = [str(tiny_checkpoint(name)) for name in NAMES]
    imported = [
        subprocess.run([sys.executable, "-c", OPEN, *folders], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert imported == ["torch transformers\n", "\n"]


def test_other_options_have_other_values(tiny_checkpoint: Callable[[str], Path], kept_folder: Path) -> None:
    folder = tiny_checkpoint("llama")
    for _ in range(2):
        assert Checkpoint.load(folder).text_config.rms_norm_eps != 0.5
        assert Checkpoint.load(folder, {"rms_norm_eps": 0.5}).text_config.rms_norm_eps == 0.5
    assert len(list(kept_folder.iterdir())) == 2


def test_a_configuration_that_is_read_otherwise_is_not_the_kept_one(
    tiny_checkpoint: Callable[[str], Path], kept_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of this package may read the same file as another model."""
    folder = tiny_checkpoint("internlm2")
    assert Checkpoint.load(folder).text_config.qkv_layout == "grouped"

    def read(config: Mapping[str, Any]) -> ConvertedConfig:
        return ConvertedConfig(config={**config, "model_type": "llama", "qkv_layout": "joined"})

    monkeypatch.setattr(stand_ins, "_BY_MODEL_TYPE", {"internlm2": read})
    assert Checkpoint.load(folder).text_config.qkv_layout == "joined"


@pytest.mark.parametrize("damage", ("{}", '{"config": 5, "text": {}}', '{"config": {"values": 5}}', "nothing"))
def test_damaged_files_are_made_again(damage: str, tiny_checkpoint: Callable[[str], Path], kept_folder: Path) -> None:
    folder = tiny_checkpoint("llama")
    size = Checkpoint.load(folder).text_config.hidden_size
    [file] = kept_folder.iterdir()
    whole = file.read_text()
    file.write_text(damage)
    assert Checkpoint.load(folder).text_config.hidden_size == size
    assert file.read_text() == whole


def test_nothing_is_kept_of_what_is_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, kept_folder: Path
) -> None:
    given = json.loads((tiny_checkpoint("llama") / "config.json").read_text())
    for changes in ({"hidden_size": "wide"}, {"model_type": "nonesuch"}, {"num_hidden_layers": 0}):
        checkpoint = Checkpoint.load(tiny_checkpoint("llama"), {**given, **changes})
        for _ in range(2):
            with pytest.raises(CheckpointError, match=next(iter(changes))):
                _ = checkpoint.model_config
    assert not kept_folder.exists()


def test_attributes_that_differ_from_layer_to_layer_are_left_out(tmp_path: Path) -> None:
    """Transformers raises an error of its own for them."""
    from transformers import CONFIG_MAPPING

    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("this version of Transformers has no such configuration")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4_text", "hidden_size": 48}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    config = Checkpoint.load(tmp_path).text_config
    assert config.hidden_size == 48
    with pytest.raises(AttributeError, match="the configuration has no 'head_dim'"):
        _ = config.head_dim
