"""docs/models.md is what the families declare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from seesay import cli
from seesay.commands.models.models_page import published_of, run_as
from seesay.errors import CheckpointError
from seesay.llm.models.configs.kinds import list_backbones
from seesay.values import Modality
from seesay.vl.family import Family
from seesay.vl.model_names import MODEL_NAMES, REASONS
from seesay.vl.modules.module_family import ModuleDecoderFamily
from seesay.vl.registry import WITH_TOWER, find_family, list_families, list_layouts

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert PAGE.read_text(encoding="utf-8") == printed, "run: seesay list --markdown > docs/models.md"
    assert all(f"| `{architecture}` |" in printed for architecture in list_layouts())


ROWS = [(architecture, family) for architecture, families in list_layouts().items() for family in families]


@pytest.mark.parametrize(("architecture", "family"), ROWS)
def test_what_is_declared_of_published_models_can_be(architecture: str, family: type[Family]) -> None:
    for row in published_of(family, architecture):
        known = CONFIG_MAPPING if issubclass(family, ModuleDecoderFamily) else list_backbones()
        assert row.decoder in known, row
        assert row.architecture or len(family.architectures) == 1, f"{row} does not say which architecture"
        assert row.names and all(name.count("/") == 1 for name in row.names), row
    declared = vars(family).get("published", ())
    assert {row.architecture for row in declared} <= {"", *(each for each, owner in ROWS if owner is family)}


def test_models_known_by_name_run_as_the_page_says_or_have_a_reason() -> None:
    names = [model.name for model in MODEL_NAMES]
    assert len(names) == len(set(names)) and all(map(run_as, MODEL_NAMES))
    for claimed, reason in REASONS.items():
        assert claimed not in list_layouts(), f"{claimed} runs: it needs no reason"
        if WITH_TOWER not in claimed:
            with pytest.raises(
                CheckpointError, match=f"architecture '{claimed}' does not run here: {re.escape(reason)}"
            ):
                find_family(claimed)


def test_a_family_that_declares_nothing_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are those of the class itself: a family made of another one is another model."""
    whole = list_families()["LlavaNextForConditionalGeneration"]
    made = type("Made", (whole,), {"architectures": ("MadeForConditionalGeneration",), "__module__": "x.made"})
    assert issubclass(made, Family) and made.published
    monkeypatch.setattr(
        "seesay.commands.models.models_page.list_layouts", lambda: {"MadeForConditionalGeneration": (made,)}
    )
    monkeypatch.setattr("seesay.commands.models.models_page.MODEL_NAMES", ())
    from seesay.commands.models.models_page import make_page

    rows = [line for line in make_page().splitlines() if line.startswith("| `Made")]
    assert rows == ["| `MadeForConditionalGeneration` | made | `max_dynamic_patch` | as pictures | - | - |"]
    assert Modality.VIDEO not in made.modalities
