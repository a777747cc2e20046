"""A griffe extension: the fields that a docstring describes, `name: text`, become a Markdown list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.+)")


class DocstringFields(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Rewrite the docstrings of classes and functions while griffe reads them."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None and (obj.is_class or obj.is_function):
            obj.docstring.value = list_fields(obj.docstring.value)


def list_fields(docstring: str) -> str:
    """Return the docstring with a list item for each line `name: text` at its margin, and for what follows indented."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        field = _FIELD.fullmatch(line)
        if field is not None and (in_list or not lines or not lines[-1]):
            names = ", ".join(f"`{name}`" for name in field[1].split(", "))
            lines.append(f"* {names}: {field[2]}")
            in_list = True
        elif in_list and line.startswith("    "):
            lines.append("  " + line.strip())
        else:
            if in_list and line:
                lines.append("")
            in_list = False
            lines.append(line)
    return "\n".join(lines)
