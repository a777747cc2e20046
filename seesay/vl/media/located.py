"""Errors of media name the place of the medium in its request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from seesay.errors import RequestError
from seesay.values import MediaPlace

T = TypeVar("T")


def locate(error: RequestError, place: MediaPlace) -> RequestError:
    """Return `error` with the place of the media that it is about, or of an option there, in its message."""
    where = place.find(error.param)
    return RequestError(error.code, f"{where}: {error.message}", where)


@contextmanager
def located(place: MediaPlace | None) -> Iterator[None]:
    """Name `place`, or an option there, in each `RequestError` raised in the block."""
    try:
        yield
    except RequestError as error:
        if place is None:
            raise
        raise locate(error, place) from error


def gather(futures: Sequence[Future[T]], places: Sequence[MediaPlace | None]) -> list[T]:
    """Return all results, in order. After a failure, calls that have not begun are cancelled. `places` are those of
    the media."""
    results = []
    try:
        for future, place in zip(futures, places, strict=True):
            with located(place):
                results.append(future.result())
        return results
    finally:
        for future in futures:
            future.cancel()
