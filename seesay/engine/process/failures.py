"""Exceptions of one process as they are raised in another: the same type, the same text."""

from __future__ import annotations

import builtins
import traceback

from seesay import errors
from seesay.device.query import is_out_of_memory
from seesay.engine.process.kinds import StartFailed
from seesay.errors import SeesayError

_OUT_OF_MEMORY = "OutOfMemoryError"


def describe_failure(error: BaseException) -> StartFailed:
    """Return what another process must know of `error`."""
    is_device = is_out_of_memory(error) and not isinstance(error, MemoryError)
    name = _OUT_OF_MEMORY if is_device else type(error).__name__
    return StartFailed(name, str(error), "".join(traceback.format_exception(error)))


def restore_failure(failure: StartFailed) -> Exception:
    """Return the exception that `describe_failure` was given, or, where its type is not one of ours or Python's, a
    `RuntimeError` that names it. One that was not raised on purpose has its traceback as a note."""
    error: Exception
    if failure.name == _OUT_OF_MEMORY:
        import torch

        return torch.OutOfMemoryError(failure.text)
    kind = getattr(errors, failure.name, None) or getattr(builtins, failure.name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        error = kind.__new__(kind, failure.text)  # what else it was made of is in the text already
        error.args = (failure.text,)
        if isinstance(error, SeesayError):
            return error
        if str(error) != failure.text:
            error = RuntimeError(f"{failure.name}: {failure.text}")
    else:
        error = RuntimeError(f"{failure.name}: {failure.text}")
    error.add_note(f"In the engine process:\n{failure.traceback}")
    return error
