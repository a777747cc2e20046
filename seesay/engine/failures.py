"""Errors as their receivers may see them."""

from __future__ import annotations

import logging

from seesay.device.query import is_out_of_memory
from seesay.errors import ErrorCode, MissingExtraError, RequestError, describe

logger = logging.getLogger("seesay")


def explain(error: BaseException) -> RequestError:
    """Return `error` as one that may be shown to a user. Our own bugs are logged with their traceback."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MissingExtraError):
        return RequestError(ErrorCode.INVALID_REQUEST, str(error))
    if is_out_of_memory(error):
        return RequestError(
            ErrorCode.OUT_OF_MEMORY, "the device ran out of memory on this request: shorten it, or use smaller pictures"
        )
    logger.error("a request failed unexpectedly", exc_info=error)
    return RequestError(ErrorCode.INTERNAL, f"this request failed inside the engine: {describe(error)}")
