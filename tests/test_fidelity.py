"""docs/fidelity.md is what the tests declare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fidelity
import pytest
import transformers
from enrolment import CHECKPOINTS, MODULES, OWN_CODE, VISION_MODULES, reference_of

PAGE = Path(__file__).parents[1] / "docs" / "fidelity.md"


def test_the_page_is_what_the_command_prints() -> None:
    printed = "".join(fidelity.print_page())
    assert PAGE.read_text(encoding="utf-8") == printed, "run: python tests/support/fidelity.py > docs/fidelity.md"


def test_every_checkpoint_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in (*CHECKPOINTS, *MODULES, *VISION_MODULES, *OWN_CODE) if f"\n| {name} |" not in page] == []


def test_every_statement_of_published_code_is_used() -> None:
    stated = {path.stem for path in (Path(__file__).parent / "reference").glob("*.py")} - {"__init__"}
    used = set(fidelity.find_references().values())
    assert used and used <= stated


def test_a_class_that_is_named_is_one_of_transformers() -> None:
    references = fidelity.find_references()
    for name, tiny in CHECKPOINTS.items():
        if fidelity.reference_of(name, tiny, references) is None:
            compared = fidelity.SIBLINGS.get(name) or tiny.architecture.partition("/")[0]
            assert hasattr(transformers, compared), name
    assert set(fidelity.BY_CHOICE) <= set(CHECKPOINTS)


@pytest.mark.parametrize("name", fidelity.SIBLINGS)
def test_an_equal_model_is_of_the_class_that_is_named(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    config = json.loads((reference_of(tiny_checkpoint(name)) / "config.json").read_text())
    assert config["architectures"] == [fidelity.SIBLINGS[name]]
