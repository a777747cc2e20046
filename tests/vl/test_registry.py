from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError
from seesay.llm.models.configs.kinds import list_backbones
from seesay.llm.models.modules.module_probe import check_config
from seesay.vl.families.chatglm import ChatGLM
from seesay.vl.families.chatglm_4v import OriginalGlm4V
from seesay.vl.families.llava import Llava
from seesay.vl.families.pixtral import Pixtral
from seesay.vl.families.text import LlamaLike
from seesay.vl.family import Family
from seesay.vl.model_names import MODEL_NAMES, REASONS
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.modules.module_vision import ModuleVisionFamily
from seesay.vl.nearest_models import NEAREST
from seesay.vl.registry import collect_families, find_family, find_model, list_families, open_registry

HUNYUAN_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10_000.0,
    "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [2, 2, 2, 2], "factor": 1.0},
}
FAMILY = """
from seesay.vl.family import Family

class Mine(Family):
    architectures = ({architecture!r},)
"""


def write_package(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> str:
    package = folder / "made_up_families"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, source in sources.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("made_up_families", *(f"made_up_families.{n}" for n in sources)):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return str(package)


def test_finds_every_supported_architecture() -> None:
    for architecture in (
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "InternVLForConditionalGeneration",
    ):
        assert architecture in find_family(architecture).architectures


def test_an_unknown_architecture_names_what_is_like_it_alone() -> None:
    with pytest.raises(
        CheckpointError, match=r"'NoSuchModel' is not supported; neither seesay \(docs/models\.md"
    ) as one:
        find_family("NoSuchModel")
    assert "InternVLForConditionalGeneration" not in str(one.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "is not supported; nearest: Qwen/Qwen2",
        ),
        ({"model_type": "mamba"}, "linear_attention, .* nearest: meta-llama"),
        ({"model_type": "hunyuan_vl", "text_config": HUNYUAN_TEXT}, r"no weights: there is neither model\.safetensors"),
        ({"model_type": "gpt_neox"}, r"no weights: there is neither model\.safetensors"),
    ],
    ids=lambda each: each["model_type"] if isinstance(each, dict) else "",
)
def test_what_config_json_decides_is_said_before_weights_are_missed(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        open_model(tmp_path, EngineConfig(device_type="cpu"))


def test_a_fixed_stretch_that_is_called_dynamic_is_the_same_for_all_texts() -> None:
    """As HunYuan's modules read it."""
    rotary = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    check_config(SimpleNamespace(model_type="hunyuan_vl_text", rope_parameters=rotary))
    for kind, parameters in (("llama", rotary), ("hunyuan_vl_text", {**rotary, "alpha": None})):
        with pytest.raises(CheckpointError, match="rope_type='dynamic' turns a text by the length"):
            check_config(SimpleNamespace(model_type=kind, rope_parameters=parameters))


@pytest.mark.parametrize(
    ("other", "claimed"),
    [
        ("Qwen2Model", "Qwen2ForCausalLM"),
        ("LlamaForSequenceClassification", "LlamaForCausalLM"),
        ("Qwen2_5_VLModel", "Qwen2_5_VLForConditionalGeneration"),
        ("LlavaModel", "LlavaForConditionalGeneration"),
    ],
)
def test_another_head_of_a_known_model(other: str, claimed: str, caplog: pytest.LogCaptureFixture) -> None:
    assert find_family(other) is find_family(claimed)
    assert [record.getMessage() for record in caplog.records] == [
        f"the checkpoint is a {other}: it is loaded as {claimed}"
    ]


@pytest.mark.parametrize("architecture", ["LlavaForConditionalGeneration", "LlavaModel"])
def test_a_tower_decides_between_families_of_one_architecture(architecture: str) -> None:
    assert find_family(architecture, "pixtral") is Pixtral
    assert find_family(architecture, "clip_vision_model") is find_family(architecture) is Llava
    assert find_family("Mistral3ForConditionalGeneration", "pixtral") is Pixtral


@pytest.mark.parametrize("architecture", ["ChatGLMModel", "ChatGLMForConditionalGeneration"])
def test_a_tower_is_a_family_of_its_own_beside_one_of_text(architecture: str) -> None:
    assert find_family(architecture, "clip_vision_model") is OriginalGlm4V
    assert find_family(architecture) is ChatGLM


@pytest.mark.parametrize(
    "other", ("LlavaLlamaForCausalLM", "Qwen2MineForCausalLM", "Qwen2", "Model", "Qwen2_5_VLTextModel")
)
def test_another_model_of_a_similar_name(other: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{other}' is not supported"):
        find_family(other)


def test_the_nearest_models_run() -> None:
    """They are published checkpoints of families, or models by name that run."""
    published = {name for family in list_families().values() for each in family.published for name in each.names}
    by_name = {model.example for model in MODEL_NAMES if not model.why_not and model.architecture not in REASONS}
    assert set(NEAREST.values()) <= published | by_name


def test_what_does_not_run_by_name_has_a_nearest_that_does() -> None:
    assert all("; nearest: " in reason for reason in REASONS.values())


@pytest.mark.parametrize(
    ("kind", "architecture", "family"),
    [
        ("iquestcoder", "LlamaForCausalLM", ModuleTextFamily),
        ("iquestcoder", "IQuestCoderForCausalLM", ModuleTextFamily),
        ("kimi_k25", "KimiK25ForConditionalGeneration", ModuleVisionFamily),
        ("llama", "LlamaForCausalLM", LlamaLike),
        ("internlm3", "InternLM3ForCausalLM", LlamaLike),
        ("llama", "MyForCausalLM", None),
        ("qwen2_vl", "MyForConditionalGeneration", None),
    ],
)
def test_a_type_that_only_transformers_has_is_found_by_it(
    kind: str, architecture: str, family: type[Family] | None, tmp_path: Path
) -> None:
    """Whatever its class is called; but another class of a type that is ours is another model."""
    code = {"auto_map": {"AutoModel": "modeling_x.X"}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [architecture], **code}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.load(tmp_path)
    if family is None:
        with pytest.raises(CheckpointError, match="neither one of ours nor one of Transformers"):
            find_model(checkpoint, open_registry())
    else:
        assert find_model(checkpoint, open_registry()) == (family, checkpoint)


def test_no_model_stands_in_for_one_of_its_own_type() -> None:
    assert not set(NEAREST) & set(list_backbones())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "is not supported; nearest: Qwen/Qwen2",
        ),
        ({"model_type": "t5"}, r"config\.json: architectures is missing, and Transformers has no model of texts"),
        (
            {"model_type": "mamba"},
            r"MambaForCausalLM .* linear_attention, .* nearest: meta-llama/Llama-3\.2-3B-Instruct",
        ),
        ({"model_type": "gpt_neox", "hidden_act": "nope"}, r"cannot be made of its config\.json \(KeyError: .*nope"),
        (
            {"model_type": "flex_olmo", "num_experts": 2, "num_experts_per_tok": 4},
            r"a trial with a few tokens and weights of zeros \(RuntimeError: selected index k out of range",
        ),
        (
            {"model_type": "ovis2_5", "architectures": ["Xx"], "auto_map": {"AutoModel": "x.Xx"}},
            r"code=True.*nearest: Qwen/Qwen2\.5-VL",
        ),
    ],
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, dict) else "",
)
def test_what_cannot_run_names_its_folder_the_reason_and_the_nearest_that_does(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({**small, **config}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message) as caught:
        family, checkpoint = find_model(Checkpoint.load(tmp_path), open_registry())
        assert issubclass(family, ModuleTextFamily)
        made = family.__new__(family)  # there is no tokenizer
        made.checkpoint = checkpoint
        _ = made.model
    assert str(caught.value).startswith(str(tmp_path))


def test_new_file_is_a_new_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_package(tmp_path, monkeypatch, one=FAMILY.format(architecture="OneModel"))
    assert collect_families([folder], "made_up_families")["OneModel"].__name__ == "Mine"


def test_broken_family_stops_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_package(tmp_path, monkeypatch, broken="import no_such_module_at_all")
    with pytest.raises(RuntimeError, match=r"made_up_families\.broken cannot be imported.*no_such_module_at_all"):
        collect_families([folder], "made_up_families")


def test_file_without_family_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_package(tmp_path, monkeypatch, empty="from seesay.vl.family import Family")
    with pytest.raises(RuntimeError, match="empty declares no Family"):
        collect_families([folder], "made_up_families")


def test_doubly_claimed_architecture_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FAMILY.format(architecture="OneModel")
    folder = write_package(tmp_path, monkeypatch, first=source, second=source)
    with pytest.raises(RuntimeError, match=r"OneModel is claimed by both .*first and .*second"):
        collect_families([folder], "made_up_families")


def test_families_import_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; from seesay.vl.registry import list_families; list_families(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert list_families()
