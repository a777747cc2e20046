"""The seam between the two halves of the engine: calls of a frontend to a core, and reports of a core to a frontend.

A core schedules and computes token requests; it knows nothing about text. `EngineLoop` is the core in a thread of this
process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from seesay.engine.commands import Command, ModelStatus
from seesay.engine.token_messages import CoreFacts, Features, TokenOutput, TokenRequest
from seesay.engine.watchdog import Fault
from seesay.errors import RequestError
from seesay.values import EngineStats, FinishReason


class CoreListener(Protocol):
    """The frontend, as a core sees it. Called from one thread of the core; must be quick, and must not raise."""

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        """Take all outputs of one step, in one call; several may be of one request, in their order."""
        ...

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        """Make the features of a media item that came without arrays, and answer with `RequestTaker.give_features`.
        Nothing needs to be done for a request that has ended."""
        ...

    def on_encoding(self, item_hash: bytes) -> None:
        """Note that the core holds the arrays of this media item for its encoder alone: further ones may be sent."""
        ...


class RequestTaker(Protocol):
    """The requests of a core. All methods may be called from any thread, and return without waiting for the core."""

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Answer requests. Each ends in exactly one final output, whatever happens."""
        ...

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete; its final output still comes. Tokens that were computed meanwhile may
        come before it. Called from `on_outputs`, it ends the request before the core plans another step."""
        ...

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests, with the finish reason 'abort'. Nothing happens to those that have ended."""
        ...

    def end_group(self, group_id: int) -> None:
        """Announce that no more requests of a group follow. The group releases its blocks."""
        ...

    def give_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        """Answer `on_features_wanted`: with all features of the item, or with why they cannot be made, which ends the
        request."""
        ...


class EngineCore(RequestTaker, Protocol):
    """Computes token requests. All methods may be called from any thread, and return without waiting for the core
    unless they say so."""

    @property
    def facts(self) -> CoreFacts:
        """The facts that were settled while the model was loaded."""
        ...

    @property
    def fault(self) -> Fault | None:
        """Why no request is computed now, and which part is at fault; None while all is well."""
        ...

    @property
    def status(self) -> ModelStatus:
        """The weights that it computes with now, and whether it sleeps."""
        ...

    def confirm_status(self) -> ModelStatus:
        """Return the status. Where a process that is not this core's commands it, too, a status that may be old is
        asked for again, and waited for."""
        ...

    def start(self, listener: CoreListener) -> None:
        """Begin to work. Called once, before all other methods."""
        ...

    def expect_media(self, request_ids: Iterable[int]) -> None:
        """Say that these requests are being prepared and have media, so that the encoder may wait a moment to batch
        them. A request that is not submitted after all must be forgotten."""
        ...

    def forget_media(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        ...

    def is_encoded(self, item_hash: bytes) -> bool:
        """Whether the embedding of this media item is there, or being made. It may be gone a moment later."""
        ...

    def run_command(self, command: Command) -> None:
        """Do it, and wait until it is done. Raises `CheckpointError` or `RequestError` when it cannot be done."""
        ...

    def stats(self) -> EngineStats:
        """Counts of everything that the core owns."""
        ...

    def stop(self) -> None:
        """End all requests with an error, then the threads, and free the weights and caches."""
        ...

    def close(self) -> None:
        """`stop`, and wait until all of that is done, but not for what hangs."""
        ...
