"""The site of the documentation: it builds without a warning, needs no other host, and has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seesay
import seesay.lite
import seesay.low_level

ROOT = Path(__file__).parent.parent

pytest.importorskip("mkdocstrings", reason="mkdocstrings is not here")
pages = pytest.importorskip("repository_pages", reason="mkdocs is not here", exc_type=ImportError)
fields = pytest.importorskip("docstring_fields", reason="griffe is not here", exc_type=ImportError)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """`--strict` fails for a page that the navigation leaves out; here the pages are on the site."""
    expected = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    expected |= {Path(page).with_suffix("") for page in pages.PAGES.values() if page != "index.md"}
    assert len(expected) > 45
    assert {page for page in expected if not (site / page / "index.html").is_file()} == set()
    assert "See images and video" in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    """Links may lead anywhere; scripts, styles, fonts and pictures may not. Mermaid would fetch a script."""
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|source|iframe|link)\b[^>]*?(?:src|srcset|href)="?(?:https?:)?//[^">]*', text
        )
        loaded = [tag for tag in loaded if 'rel="canonical"' not in tag]
        assert not loaded and not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", text), (page, loaded)
        assert 'class="mermaid"' not in text, page


def test_pictures_and_links_between_pages_are_there(site: Path) -> None:
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:src|srcset)="([^":]+)"', text):
            assert (page.parent / target.partition("?")[0]).is_file(), (page, target)


def test_the_reference_has_every_public_name(site: Path) -> None:
    anchors = "\n".join(path.read_text(encoding="utf-8") for path in (site / "api").rglob("*.html"))
    described = {name.rpartition(".")[2] for name in re.findall(r'id="(seesay\.[\w.]+)"', anchors)}
    described |= {"PytorchEngineConfig", "IMAGE_TOKEN", "__version__", "errors", "lite", "low_level"}
    public = {*seesay.__all__, *seesay.low_level.__all__, *seesay.lite.__all__, *dir(seesay.errors)}
    public -= {name for name in dir(seesay.errors) if not name.endswith(("Error", "ErrorCode"))}
    assert public <= described, public - described


@pytest.mark.parametrize(
    ("page", "link", "on_site"),
    [
        ("index.md", "[a](docs/media.md#limits)", "[a](media.md#limits)"),
        ("index.md", '<img src="docs/pictures/a.svg">', '<img src="pictures/a.svg">'),
        ("architecture.md", "[a](docs/design/caches.md)", "[a](design/caches.md)"),
        ("media.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("design/caches.md", "[a](../../ARCHITECTURE.md)", "[a](../architecture.md)"),
        ("design/caches.md", "[a](scheduling.md)", "[a](scheduling.md)"),
        ("plugins.md", "[a](../examples/my_family/README.md)", f"[a]({pages.REPOSITORY}examples/my_family/README.md)"),
        ("media.md", "[a](https://example.com/b) [c](#d)", "[a](https://example.com/b) [c](#d)"),
    ],
)
def test_links_are_rewritten_for_the_site(page: str, link: str, on_site: str) -> None:
    assert pages.rewrite_links(link, page) == on_site


def test_fields_of_a_docstring_become_a_list() -> None:
    docstring = "Do it.\n\na, b: the first\n    and second.\nc: the third: 3.\n\nNot a field: text."
    expected = "Do it.\n\n* `a`, `b`: the first\n  and second.\n* `c`: the third: 3.\n\nNot a field: text."
    assert fields.list_fields(docstring) == expected
