"""Say what pydantic finds wrong with a body in the words of all other errors: field, what it must be, what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seesay.errors import show
from seesay.serving.errors import ApiError, bad_request

_MAX_NAME_CHARS = 80
_UNION_NAMES = frozenset(["str", "int", "float", "bool", "dict", "list"])
_KINDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
"""The allowed values, by the type of the problem."""


def explain_invalid(problems: Sequence[Mapping[str, Any]], body: Any = None) -> ApiError:
    """Return the error for an invalid `body`, or for invalid fields of a query. It reports one problem: the most deeply
    nested, which for a union is that of the branch that matched furthest. Where several branches did not match at all,
    it names what each of them takes."""
    where, at_place = _find_deepest(problems, body)
    problem = max(at_place, key=lambda entry: entry["type"] not in _KINDS)
    match problem["type"]:
        case "extra_forbidden":
            return bad_request(f"unknown field: {where}", where, code="unknown_parameter")
        case "missing" | "union_tag_not_found" if where:
            return bad_request(f"the field {where} is missing", where, code="missing_required_parameter")
        case _ if not where:
            return make_not_json_error()
        case "union_tag_invalid":
            context = problem["ctx"]
            return bad_request(f"{where} must be one of {context['expected_tags']}, got {show(context['tag'])}", where)
        case kind if kind in _KINDS:
            kinds = " or ".join(dict.fromkeys(_KINDS[entry["type"]] for entry in at_place if entry["type"] in _KINDS))
            return bad_request(f"{where} must be {kinds}, got {show(problem.get('input'))}", where)
        case _:
            return bad_request(f"{where}{_describe(problem)}", where)


def _find_deepest(problems: Sequence[Mapping[str, Any]], body: Any) -> tuple[str | None, list[Mapping[str, Any]]]:
    """Return the most deeply nested of the fields that have a problem, and all its problems."""
    places = [_name_field(problem, body) for problem in problems]
    where = max(places, key=lambda place: (place or "").count(".") + (place or "").count("["))
    return where, [problem for problem, place in zip(problems, places, strict=True) if place == where]


def make_not_json_error() -> ApiError:
    """Return the error for a body that is not a JSON object."""
    return bad_request("the body must be a JSON object (with the header Content-Type: application/json)")


def _describe(problem: Mapping[str, Any]) -> str:
    """Return what is wrong with a field, with its value."""
    text: str = problem["msg"]
    _, is_pydantics, rule = text.partition(" should ")
    if not is_pydantics or text.startswith("Value error, "):
        return f": {text.removeprefix('Value error, ')}"
    rule = rule.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return f" must {rule}, got {show(problem.get('input'))}"


def _name_field(problem: Mapping[str, Any], body: Any) -> str | None:
    """Return `messages[0].content` for ('messages', 0, 'content', 'str'). Names of union branches are left out: those
    that are not keys of the body, but for a last one that is missing there."""
    location: tuple[int | str, ...] = problem["loc"]
    last = len(location) - 1 if problem["type"] == "missing" else None
    name, value = "", body
    for index, step in enumerate(location):
        is_there = _has(value, step)
        if isinstance(step, int):
            name += f"[{step}]"
        elif is_there or body is None or index == last:
            name = _append_field(name, step[:_MAX_NAME_CHARS], is_key=is_there)
        else:  # the name of a branch
            continue
        value = value[step] if is_there else None
    if problem["type"].startswith("union_tag"):
        name += "." + problem["ctx"]["discriminator"].strip("'")
    return name or None


def _has(value: Any, step: int | str) -> bool:
    if isinstance(step, int):
        return isinstance(value, list) and step < len(value)
    return isinstance(value, dict) and step in value


def _append_field(name: str, step: str, *, is_key: bool) -> str:
    """Return the name of a field inside of `name`; `name` itself for a branch of a union."""
    if not step.isidentifier() or (step in _UNION_NAMES and not is_key):
        return name
    return f"{name}.{step}" if name else step
