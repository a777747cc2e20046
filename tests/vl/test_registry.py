from __future__ import annotations

from pathlib import Path

import pytest

from seesay.errors import CheckpointError
from seesay.vl.families.chatglm import ChatGLM
from seesay.vl.families.glm_4v import OriginalGlm4V
from seesay.vl.families.llava import Llava
from seesay.vl.families.pixtral import Pixtral
from seesay.vl.registry import collect_families, find_family, list_families

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


def test_unknown_architecture_lists_what_is_supported() -> None:
    with pytest.raises(CheckpointError, match=r"'NoSuchModel' is not supported.*InternVLForConditionalGeneration"):
        find_family("NoSuchModel")


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
