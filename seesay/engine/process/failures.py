"""Exceptions of one process as they are raised in another, with the same type and text, and those of its end."""

from __future__ import annotations

import builtins
import traceback

from seesay import errors
from seesay.device.query import is_out_of_memory
from seesay.engine.process.kinds import Failure, StartFailed
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
    failure = Failure.of(error) if isinstance(error, RequestError) else None
    return StartFailed(name, str(error), "".join(traceback.format_exception(error)), failure)


def restore_failure(failure: StartFailed) -> Exception:
    """Return the exception that was passed to `describe_failure`, or, where its type is not one of ours or Python's, a
    `RuntimeError` that names it. One that was not raised on purpose has its traceback as a note."""
    if failure.name == _OUT_OF_MEMORY:
        import torch

        return torch.OutOfMemoryError(failure.text)
    if (refused := failure.refused) is not None:
        return RequestError(refused.code, failure.text, refused.param)
    error = _make_alike(failure.name, failure.text) or RuntimeError(f"{failure.name}: {failure.text}")
    if not isinstance(error, SeesayError):
        error.add_note(f"In the engine process:\n{failure.traceback}")
    return error


def _make_alike(name: str, text: str) -> Exception | None:
    """Return an exception of a type that is ours or Python's, with this text; None where there is none."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        error: Exception = kind.__new__(kind, text)  # what else it was made of is in the text already
    except TypeError:  # an ExceptionGroup is made of others
        return None
    error.args = (text,)
    return error if str(error) == text else None
