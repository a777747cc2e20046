"""Fields of a document that the APIs share: a part of a conversation that becomes pictures of its pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.fields import StrictModel
from seesay.values import MediaPart, MediaPlace, Modality
from seesay.vl.constants import DETAILS

PAGE_FIELDS = ("pages", "dpi", "text_layer")
NO_FILE_ID = "file_id is not supported; send the file itself, as file_data"


class PageFields(StrictModel):
    """pages: which pages are taken, such as "1-3,7" or "5-"; all, if left out. dpi: pixels per inch. text_layer: "auto"
    adds the text that a page has itself."""

    pages: str | int | None = Field(None, description="such as '1-3,7' or '5-'; by default all pages")
    dpi: int | None = Field(None, ge=18, le=1200, description="pixels per inch of the pictures of pages; 144")
    text_layer: Literal["none", "auto"] | None = Field(
        None, description="auto: the text that a page has itself follows its picture"
    )


def make_document(
    holder: Mapping[str, object], source: object, *, path: str, where: str, names: Mapping[str, str] | None = None
) -> MediaPart:
    """Return the part of a document. `holder`, at the place `where`, has the options, and `path` is the place of
    the source. `names`: options with the keys that they have here. Raises `ApiError` 400."""
    names = {**{name: name for name in PAGE_FIELDS}, **(names or {})}
    options: dict[str, Any] = {name: holder[key] for name, key in names.items() if holder.get(key) is not None}
    detail = holder.get("detail")
    if detail is not None and detail not in DETAILS:
        raise bad_request(f"{where}.detail must be {', '.join(DETAILS)}, got {show(detail)}", f"{where}.detail")
    if detail == "low":
        options["detail"] = detail
    place = MediaPlace(source=path, parent=where, keys={"detail": "detail", **names})
    return MediaPart(modality=Modality.DOCUMENT, source=source, options=options, place=place)


def find_source(holder: Mapping[str, object], names: Sequence[str], where: str) -> tuple[str, str]:
    """Return (the one of the fields `names` that has the file, its place). Raises `ApiError` 400."""
    if holder.get("file_id") is not None:
        raise bad_request(f"{where}.{NO_FILE_ID}", f"{where}.file_id")
    given = [name for name in names if holder.get(name) is not None]
    if len(given) != 1:
        raise bad_request(f"{where} must have {' or '.join(names)}, and one of them", f"{where}.{names[0]}")
    source, path = holder[given[0]], f"{where}.{given[0]}"
    if not isinstance(source, str) or not source:
        raise bad_request(f"{path} must be a text, got {show(source)}", path)
    return source, path
