"""Configurations whose classes are code beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


def load(folder: Path, **config: object) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({**SIZES, "auto_map": {"AutoConfig": "code.Config"}, **config}))
    (folder / "code.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return Checkpoint.load(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "internlm2"}, {"attention_bias": True, "mlp_bias": False}),
        ({"model_type": "internlm2", "bias": False}, {"attention_bias": False, "mlp_bias": False}),
        ({"model_type": "internlm3"}, {"attention_bias": False, "mlp_bias": False}),
        ({"model_type": "internlm3", "bias": True, "qkv_bias": True}, {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_they_are_read_as_a_known_one(tmp_path: Path, config: dict[str, object], expected: dict[str, bool]) -> None:
    found = load(tmp_path, **config).text_config
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.hidden_size == 32 and found.num_key_value_heads == 1


def test_what_the_known_one_cannot_say_is_refused(tmp_path: Path) -> None:
    checkpoint = load(tmp_path, model_type="internlm3", bias=False, qkv_bias=True)
    with pytest.raises(CheckpointError, match=r"config\.json: bias=False with another qkv_bias"):
        checkpoint.hf_config()


@pytest.mark.parametrize("kind", ["internlm9", None, ["internlm2"]])
def test_unknown_ones_are_refused_by_name(tmp_path: Path, kind: object) -> None:
    with pytest.raises(CheckpointError, match="code from checkpoints is not run"):
        load(tmp_path, model_type=kind).hf_config()
