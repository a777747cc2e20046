"""Makes Triton's interpreter faster: repeated work is done once. Results stay the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


def hasten() -> None:
    """Change the interpreter of this process."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # sums and products of integers are checked, and nobody asks for the outcome
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _remember_by_name(interpreter._get_np_dtype)
    interpreter._patch_lang = _PatchOnce(interpreter._patch_lang)


def _remember_by_name(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    found: dict[str, Any] = {}

    def get(dtype: Any) -> Any:
        if dtype.name not in found:
            found[dtype.name] = find(dtype)
        return found[dtype.name]

    return get


class _PatchOnce:
    """Lets functions that a kernel calls find the language as the kernel found it: it is changed when a kernel begins,
    and changed back at its end, not changed again by each call."""

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._languages: dict[int, frozenset[str]] = {}
        self._patched = set[frozenset[str]]()

    def __call__(self, function: Any) -> Any:
        languages = self._find_languages(function.__globals__)
        if languages in self._patched:
            return None
        is_kernel = not self._patched
        scope = self._patch(function)
        self._patched.add(languages)
        if is_kernel:
            restore = scope.restore

            def end() -> None:
                self._patched.clear()
                restore()

            scope.restore = end
        return scope

    def _find_languages(self, names: dict[str, Any]) -> frozenset[str]:
        """Return which of the language's modules a function sees that has these global names."""
        import triton.language as tl

        if id(names) not in self._languages:
            seen = frozenset(
                module.__name__ for module in (tl, tl.core) if any(each is module for each in names.values())
            )
            self._languages[id(names)] = seen
        return self._languages[id(names)]
