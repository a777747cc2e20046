"""The examples of docs/adding_a_family.md are families that hold the contract."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import family_checks
import pytest
import torch
from doc_examples import read_examples
from family_contract import Loaded

from seesay.checkpoint import Checkpoint
from seesay.vl.registry import collect_families

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_family.md"
CHECKS = [check for check in family_checks.CHECKS if check is not family_checks.keys_follow_options]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


EXAMPLES = {"SquareLlava": "llava", "TiledLlava": "llava_next"}
"""The classes of the page, and the tiny checkpoint that each runs on."""


@pytest.fixture(scope="module", params=EXAMPLES)
def example(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, load: Callable[[str], Loaded]
) -> Loaded:
    """A family of the page, found by the registry."""
    examples = [each.code for each in read_examples(PAGE.read_text(encoding="utf-8")) if each.language == "python"]
    [code] = [code for code in examples if f"class {request.param}(" in code]
    assert len(examples) == len(EXAMPLES)
    folder = tmp_path_factory.mktemp("example")
    package = folder / f"families_of_the_page_{request.param.lower()}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "family.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        families = collect_families([str(package)], package.name)
    finally:
        sys.path.remove(str(folder))
    loaded = load(EXAMPLES[request.param])
    family = families[f"{request.param}ForConditionalGeneration"](Checkpoint.load(loaded.path), loaded.tokenizer)
    return replace(loaded, family=family, encoder=family.build_encoder(torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_example_holds_the_contract(check: family_checks.Check, example: Loaded) -> None:
    check(example)


def test_the_simplest_example_is_short() -> None:
    """A family of the simplest kind is one file of at most 60 lines."""
    page = PAGE.read_text(encoding="utf-8")
    [code] = [each.code for each in read_examples(page) if "class SquareLlava(" in each.code]
    assert len(code.splitlines()) <= 40 and f"{len(code.splitlines())} lines" in page


def test_the_example_counts_as_the_processor_does(example: Loaded) -> None:
    family_checks.counts_equal_the_processors(example, family_checks.random_sizes(2_000))


def test_the_page_names_what_there_is() -> None:
    """Functions and files that the page points at."""
    import re

    from seesay.vl.bases import arrangement
    from seesay.vl.family import Family

    text = PAGE.read_text(encoding="utf-8")
    root = PAGE.parents[1]
    for path in re.findall(r"`((?:seesay|tests)/[\w/.]+\.py)", text):
        assert (root / path).is_file(), path
    table = text[text.index("## What a family declares") : text.index("## Rows that do not lie")]
    for name in re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line)):
        assert name in dir(Family) or name in Family.__annotations__, name
    for name in ("number_rows", "join_tiles", "unpad", "end_lines", "chain", "shrink", "blend", "chain_blends"):
        assert f"`{name}" in text and hasattr(arrangement, name)
