"""Parts of the lists of items: of a conversation, and of what a response answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, Query, Request

from seesay.serving.errors import bad_request
from seesay.serving.http.query import refuse_unknown

Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """The part that a request asks for: at most `limit` items behind the one of the id `after`."""

    limit: int
    order: Order
    after: str | None

    @classmethod
    async def read(
        cls, http: Request, limit: int = Query(20, ge=1, le=100), order: Order = "desc", after: str | None = None
    ) -> Self:
        """Read the query parameters. Raises `ApiError` 400 for unknown ones; `include` has no effect."""
        await refuse_unknown(http, "limit", "order", "after", "include", "include[]", lists=("include", "include[]"))
        return cls(limit=limit, order=order, after=after)

    def cut(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return this part of a list that ascends, as an `ItemList`. Raises `ApiError` 400 for an unknown id."""
        found = list(items) if self.order == "asc" else list(reversed(items))
        if self.after is not None:
            place = next((index for index, item in enumerate(found) if item["id"] == self.after), None)
            if place is None:
                raise bad_request(f"after: there is no item {self.after[:60]!r}", "after")
            found = found[place + 1 :]
        return make_list(found[: self.limit], has_more=len(found) > self.limit)


AskedPage = Annotated[ItemPage, Depends(ItemPage.read)]


def make_list(items: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Return items as an `ItemList`."""
    ends = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": ends[0], "last_id": ends[1], "has_more": has_more}
