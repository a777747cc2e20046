"""Validate option values by their type annotations. A wrong value raises `ConfigError` and names the option.

This module knows no options: classes bring their annotations, callers their tables.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from seesay.errors import ConfigError

T = TypeVar("T")
_Check = Callable[[Any], bool]
_NO_DEFAULT = object()


def check_types(config: object) -> None:
    """Raise `ConfigError` for the first field of a dataclass instance whose value is not of its annotated type.

    NumPy's numbers are accepted as numbers. bool, infinity and NaN are not, nor is a string with unpaired surrogates.
    """
    cls: Callable[..., object] = type(config)
    defaults = cls.__dict__
    for name, (is_valid, need) in _checks_of(cls).items():
        value = getattr(config, name)
        if not (value is defaults.get(name, _NO_DEFAULT) or is_valid(value)):
            raise _make_error(name, need, value)


def check_value(owner: type, name: str, value: object) -> None:
    """Check one value like `check_types`, for the field `name` of the class `owner`."""
    is_valid, need = _checks_of(owner)[name]
    if not is_valid(value):
        raise _make_error(name, need, value)


def check_instance(name: str, value: object, *kinds: type) -> None:
    """Raise `TypeError` for an argument that is neither None nor an instance of one of `kinds`."""
    if value is not None and not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")


def require(condition: bool, option: str, value: object, need: str) -> None:
    """Raise `ConfigError` unless `condition` holds. `need` says what the option must be."""
    if not condition:
        raise ConfigError(f"{option} {need}, got {_show(value)}")


def refuse_unsupported(config: object, allowed: Mapping[str, tuple[object, ...]]) -> None:
    """Raise `ConfigError` for the first option in `allowed` whose value is not listed there."""
    for name, values in allowed.items():
        value = getattr(config, name)
        if not any(value is v or value == v for v in values):
            raise ConfigError(f"{type(config).__name__}.{name}={value!r} is not supported, only {values[0]!r}")


def accept_defaults(others: Mapping[str, Sequence[object]]) -> Callable[[type[T]], type[T]]:
    """Decorate a keyword-only dataclass so that it also accepts the options `others`, at the listed values only.

    They are options of the corresponding class of another project, at values that describe what this class does anyway.
    Any other value raises `ConfigError` that names the option. The class does not store them.
    """

    def decorate(cls: type[T]) -> type[T]:
        make: Callable[..., None] = cls.__init__

        @functools.wraps(make)
        def make_without(self: T, *args: object, **options: object) -> None:
            if args:
                raise TypeError(f"{cls.__name__} takes keyword arguments only: {cls.__name__}(name=value, …)")
            for name in options.keys() & others.keys():
                value, allowed = options.pop(name), others[name]
                if not any(type(value) is type(known) and value == known for known in allowed):
                    only = " or ".join(map(repr, allowed))
                    raise ConfigError(f"{cls.__name__}.{name}={value!r} is not supported, only {only}")
            make(self, **options)

        setattr(cls, "__init__", make_without)  # noqa: B010 - mypy forbids to assign a method
        return cls

    return decorate


def _make_error(name: str, need: str, value: object) -> ConfigError:
    cause = " with unpaired surrogates" if isinstance(value, str) and not _is_text(value) else ""
    return ConfigError(f"{name} must be {need}, got {_show(value)}{cause}")


def _show(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # more digits than Python writes
        return "a number of many digits"


@functools.cache
def _checks_of(cls: Callable[..., object]) -> dict[str, tuple[_Check, str]]:
    return {name: (_make_check(hint), _describe(hint)) for name, hint in get_type_hints(cls).items()}


def _make_check(hint: Any) -> _Check:
    if hint is Any:
        return lambda _: True
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in _PLAIN:
        return _PLAIN[origin]
    if origin in _LISTS:
        return _make_list_check(tuple if origin is tuple else Sequence, arguments[0])
    make = _MAKERS.get(origin)
    return (lambda value: isinstance(value, origin)) if make is None else make(arguments)


def _make_list_check(kind: type, item: Any) -> _Check:
    check = _make_check(item)

    def is_valid(value: Any) -> bool:
        is_list = isinstance(value, kind) and not isinstance(value, str | bytes)
        return is_list and all(map(check, value))

    return is_valid


def _make_literal_check(choices: tuple[Any, ...]) -> _Check:
    return lambda value: any(type(value) is type(known) and value == known for known in choices)


def _make_union_check(arguments: tuple[Any, ...]) -> _Check:
    checks = [_make_check(argument) for argument in arguments if argument is not NoneType]
    takes_none = NoneType in arguments
    if len(checks) == 1:  # the most frequent
        [only] = checks
        return lambda value: only(value) if value is not None else takes_none
    return lambda value: any(check(value) for check in checks) if value is not None else takes_none


def _make_mapping_check(arguments: tuple[Any, ...]) -> _Check:
    key, entry = map(_make_check, arguments)
    return lambda value: isinstance(value, Mapping) and all(key(k) and entry(v) for k, v in value.items())


_MAKERS: Mapping[Any, Callable[[tuple[Any, ...]], _Check]] = {
    Callable: lambda _: callable,
    Literal: _make_literal_check,
    Mapping: _make_mapping_check,
    Union: _make_union_check,
    UnionType: _make_union_check,
}
"""Make the check of a generic type of its arguments."""


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in _PLAIN_NAMES:
        return _PLAIN_NAMES[origin]
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, arguments))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in _LISTS:
        return f"a list ({_describe(arguments[0])} each)"
    if origin is Mapping:
        return f"a dict ({_describe(arguments[0])}: {_describe(arguments[1])})"
    return "a function" if origin is Callable else f"a {getattr(origin, '__name__', origin)}"


def _is_whole(value: object) -> bool:
    return type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral))


def _is_number(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer above the largest float
        return False


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:  # an unpaired surrogate
        return False


_LISTS = (Sequence, list, tuple)
_PLAIN: dict[Any, _Check] = {
    int: _is_whole,
    float: _is_number,
    bool: lambda value: isinstance(value, bool),
    str: _is_text,
    NoneType: lambda value: value is None,
}
_PLAIN_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    NoneType: "None",
    Any: "anything",
}
