"""A hook of mkdocs: pages that lie outside docs/ become pages of the site, and links between files keep working.

README.md is the first page. A link to a file that is no page goes to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/seesay/seesay/blob/main/"
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_FILES = {page: file for file, page in PAGES.items()}
_LINK = re.compile(r'(\]\(|(?:src|srcset)=")(?![a-z]+:|#)([^)"#\s]+)')


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for file, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite each link, which is relative to its file in the repository, for the page's place on the site."""
    return rewrite_links(markdown, page.file.src_uri)


def rewrite_links(markdown: str, page: str) -> str:
    """Return the page with links that are right on the site. `page` is its path there, such as 'design/caches.md'."""
    file = _FILES.get(page, f"docs/{page}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), link[2]))
        if target.startswith("docs/") and not target.endswith(".py"):
            place = target.removeprefix("docs/")
        elif target in PAGES:
            place = PAGES[target]
        else:
            return link[1] + REPOSITORY + target
        return link[1] + posixpath.relpath(place, posixpath.dirname(page) or ".")

    return _LINK.sub(rewrite, markdown)
