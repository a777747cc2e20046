"""Every architecture of the registry is tested, or its tests fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from enrolment import (
    BACKBONES,
    CHECKPOINTS,
    EMBEDDERS,
    ENROLLED,
    FAMILIES,
    MROPE_FAMILIES,
    VIDEO_FAMILIES,
    Tiny,
    enrol,
)

from seesay.checkpoint import ORIGINALS, Checkpoint
from seesay.vl.families.internvl import InternVL
from seesay.vl.families.qwen2_vl import Qwen2VL
from seesay.vl.registry import list_families
from seesay.vl.text_family import TextFamily

COMPARED_ALONE = {"DeepseekOCR2ForCausalLM", "GmeQwen2VL", "JinaVLForRanking"}
"""Layouts that tests/vl/test_deepseek_ocr.py, test_embedders.py and test_rerankers.py compare."""


def test_every_architecture_of_the_registry_has_a_checkpoint() -> None:
    enrolled = {tiny.architecture for tiny in CHECKPOINTS.values() if not tiny.variant} | {*EMBEDDERS.values()}
    missing = sorted(set(list_families()) - enrolled)
    assert not missing, f"no tiny checkpoint of {missing} in tests/support/enrolment.py"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_of_the_architecture_that_it_stands_for(
    name: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    path, tiny = tiny_checkpoint(name), CHECKPOINTS[name]
    config = json.loads((path / "config.json").read_text())
    architecture, _, tower = tiny.architecture.partition("/")
    assert config["architectures"] == [tiny.published_as or architecture]
    assert not tower or Checkpoint.load(path).tower_type == tower


def test_every_layout_that_is_read_as_another_architecture_has_a_checkpoint() -> None:
    tested = {(tiny.published_as, tiny.architecture) for tiny in CHECKPOINTS.values() if tiny.published_as}
    assert {name for name, _ in tested} | COMPARED_ALONE == set(ORIGINALS)
    assert tested <= {(name, read_as) for name, known in ORIGINALS.items() for read_as in known}


def test_an_architecture_without_checkpoint_is_enrolled_all_the_same() -> None:
    """Also when it is the second one of its file, and when all that it has is a variant."""
    families = {"One": InternVL, "Two": InternVL, "Three": TextFamily}
    one, variant = Tiny(architecture="One"), Tiny(architecture="Three", variant=True)
    enrolled = enrol(families, {"one": one, "other": variant})
    assert enrolled == {"one": InternVL, "other": TextFamily, "Two": InternVL, "Three": TextFamily}


def test_its_tests_fail(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(pytest.fail.Exception, match="TwoForConditionalGeneration has no tiny checkpoint: name one in"):
        tiny_checkpoint("TwoForConditionalGeneration")


def test_a_checkpoint_of_no_family_is_an_error() -> None:
    with pytest.raises(ValueError, match="'old' is a GoneForCausalLM, which no family claims"):
        enrol({"Two": Qwen2VL}, {"old": Tiny(architecture="GoneForCausalLM")})


def test_lists_come_from_what_families_declare() -> None:
    assert set(FAMILIES) >= {"llava", "internvl", "qwen2_vl", "qwen2_5_vl"} and not set(FAMILIES) & set(BACKBONES)
    assert set(BACKBONES) >= {"llama", "phi3", "phi3_longrope"}
    assert set(MROPE_FAMILIES) == {name for name in FAMILIES if ENROLLED[name].num_position_axes == 3}
    assert {"qwen2_vl", "qwen2_5_vl"} <= set(MROPE_FAMILIES) and "internvl" in VIDEO_FAMILIES
    assert "llava" not in VIDEO_FAMILIES
