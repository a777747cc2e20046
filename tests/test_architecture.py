"""ARCHITECTURE.md, CONTRIBUTING.md and docs/design/ name what is there."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("seesay", "tests", "benchmarks", "tools", "examples", "docs")


def test_the_tree_names_every_module_and_folder_of_the_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = text[text.index("\nseesay/\n") : text.index("\n```\n", text.index("\nseesay/\n"))]
    found = {path.name + "/" for path in (ROOT / "seesay").iterdir() if (path / "__init__.py").exists()}
    found |= {path.name for path in (ROOT / "seesay").glob("*.py")}
    assert not [name for name in sorted(found) if not re.search(rf"(?<![\w/]){re.escape(name)}", tree)]


DESIGN = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/design").glob("*.md"))


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md", *DESIGN])
def test_files_that_are_named_exist(document: str) -> None:
    there = {f"/{path.relative_to(ROOT)}" for path in chain.from_iterable((ROOT / at).rglob("*.*") for at in FOLDERS)}
    named = set(re.findall(r"(?<![\w/*])[\w/]+\.(?:py|sh)\b", (ROOT / document).read_text()))
    assert len(named) > (2 if document in DESIGN else 10)
    assert not [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)]


PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", PAGES)
def test_links_lead_to_files(document: str) -> None:
    page = ROOT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_architecture_is_short_and_lists_every_page_of_design() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 150
    assert DESIGN
    assert not [page for page in DESIGN if f"]({page})" not in text]
