"""The descriptions of a configuration's fields: the lines `name: text` in the docstring of its class.

One description serves the API reference, the command line's help and the page of options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

_FIELD = re.compile(r"(\w+): (.*)")


@lru_cache
def describe_fields(cls: Any) -> Mapping[str, str]:
    """Return {field: description} of a dataclass, in the order of its fields.

    A description begins at the docstring's margin and continues in indented lines. A field without one is left out, and
    so are all of them under `python -OO`.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        field = _FIELD.fullmatch(line)
        if field is not None:
            lines = found.setdefault(field[1], [field[2]])
        elif lines is not None and line.startswith("    "):
            lines.append(line.strip())
        else:
            lines = None
    return {field.name: " ".join(found[field.name]) for field in fields(cls) if field.name in found}
