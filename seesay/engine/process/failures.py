"""Exceptions of one process as they are raised in another, with the same type and text, and those of its end."""

from __future__ import annotations

import builtins
import traceback

from seesay import errors
from seesay.device.query import is_out_of_memory
from seesay.engine.process.kinds import StartFailed
from seesay.engine.watchdog import Fault
from seesay.errors import ErrorCode, RequestError, SeesayError

_OUT_OF_MEMORY = "OutOfMemoryError"


class HungError(SeesayError):
    """The engine process was killed, because something in it hung."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the engine process was killed ({fault.reason})")
        self.fault = fault


def make_lost_error(fault: str) -> RequestError:
    """Return the error of a request that was lost with its process."""
    return RequestError(ErrorCode.INTERNAL, f"{fault}; send the request again")


def describe_failure(error: BaseException) -> StartFailed:
    """Return what another process must know of `error`."""
    is_device = is_out_of_memory(error) and not isinstance(error, MemoryError)
    name = _OUT_OF_MEMORY if is_device else type(error).__name__
    return StartFailed(name, str(error), "".join(traceback.format_exception(error)))


def restore_failure(failure: StartFailed) -> Exception:
    """Return the exception that was passed to `describe_failure`, or, where its type is not one of ours or Python's, a
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
