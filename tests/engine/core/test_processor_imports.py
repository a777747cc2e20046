"""Logits processors by name: which names lead to a function, and what is said of the others."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from seesay.engine.core.processor_imports import ProcessorImports
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import NamedProcessor

ANY = r"[\w.:]+"


def find(name: str, pattern: str | None = ANY, arguments: Any = None) -> Any:
    named = NamedProcessor(name, None if arguments is None else json.dumps(arguments))
    [function] = ProcessorImports(pattern).find([named])
    return function


@pytest.mark.parametrize("name", ["math:sqrt", "math.sqrt"])
def test_a_name_leads_to_a_function(name: str) -> None:
    assert find(name) is math.sqrt


def test_a_module_may_be_in_packages() -> None:
    assert find("os.path:basename") is find("os.path.basename")


def test_functions_stay_beside_names_in_their_order() -> None:
    def own(token_ids: Any, logits: Any) -> Any:
        return logits

    given: list[Any] = [own, NamedProcessor("math:sqrt"), own]
    found: tuple[Any, ...] = ProcessorImports("math:.*").find(given)
    assert found == (own, math.sqrt, own)
    assert ProcessorImports(None).find([own]) == (own,) and ProcessorImports(None).find([]) == ()


def test_arguments_make_the_processor() -> None:
    assert find("operator:itemgetter", arguments={"args": [1, 0], "kwargs": {}})("ab") == ("b", "a")
    made = find("operator:methodcaller", arguments={"args": ["split"], "kwargs": {"sep": ","}})
    assert made("a,b") == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "pattern", "text"),
    [
        ("sqrt", ANY, "'sqrt' is not of the form 'package.module:function'"),
        ("math:sqrt ", ".*", "is not of the form"),
        ("math:1", ".*", "is not of the form"),
        (".math:sqrt", ".*", "is not of the form"),
        ("math::sqrt", ".*", "is not of the form"),
        ("math:sqrt", None, "is not allowed: this engine imports none"),
        ("math:sqrt", "math:sq", "does not match logits_processor_pattern"),
        ("math:sqrt", "ath:sqrt", "does not match logits_processor_pattern"),
        ("math:no_such", ANY, "cannot be imported: AttributeError"),
        ("seesay_no_such:f", ANY, "cannot be imported: ModuleNotFoundError"),
        ("math:pi", ANY, "is not a function but a float"),
    ],
)
def test_others_are_refused_with_the_reason(name: str, pattern: str | None, text: str) -> None:
    with pytest.raises(RequestError, match=r"^logits_processors: ") as raised:
        find(name, pattern)
    assert text in str(raised.value)
    assert raised.value.code is ErrorCode.INVALID_REQUEST and raised.value.param == "logits_processors"


@pytest.mark.parametrize(("length", "is_name"), [(256, True), (257, False)])
def test_a_name_is_not_endless(length: int, is_name: bool) -> None:
    with pytest.raises(RequestError) as raised:
        find("m" * (length - 2) + ":f")
    assert ("cannot be imported" in str(raised.value)) == is_name
    assert ("is not of the form" in str(raised.value)) != is_name


def test_what_is_made_must_be_a_function_and_must_not_fail() -> None:
    with pytest.raises(RequestError, match="is not a function but a str"):
        find("builtins:str", arguments={"args": [5], "kwargs": {}})
    with pytest.raises(RequestError, match="cannot be imported: ValueError"):
        find("builtins:int", arguments={"args": ["x"], "kwargs": {"base": 16}})


def test_a_module_that_ends_the_process_ends_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seesay_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RequestError, match="cannot be imported: SystemExit"):
        find("seesay_exits:f")
    assert "seesay_exits" not in sys.modules


def test_no_module_is_imported_whose_name_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seesay_imported.py").write_text("f = len")
    monkeypatch.syspath_prepend(str(tmp_path))
    for pattern in (None, "math:.*"):
        with pytest.raises(RequestError, match="is not allowed"):
            find("seesay_imported:f", pattern)
    assert "seesay_imported" not in sys.modules
    assert find("seesay_imported:f") is len
    del sys.modules["seesay_imported"]
