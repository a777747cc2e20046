"""Commands that wait until no request is alive. Used by the loop's thread."""

from __future__ import annotations

from concurrent.futures import Future

from seesay.engine.commands import Command, Sleep, UpdateWeights, WakeUp
from seesay.engine.core.model_control import ModelControl
from seesay.errors import ErrorCode, RequestError


class WaitingCommands:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Command, Future[None]]] = []

    def __bool__(self) -> bool:
        """Whether commands wait: requests that arrive now are held."""
        return bool(self._waiting)

    def add(self, command: Command, done: Future[None]) -> None:
        """Take a command; `done` tells of its end."""
        self._waiting.append((command, done))

    def drop(self, done: Future[None]) -> None:
        """Forget a command of whose end somebody else tells."""
        self._waiting = [(command, other) for command, other in self._waiting if other is not done]

    def run(self, control: ModelControl | None) -> None:
        """Have `control` do all commands; without one each fails."""
        while self._waiting:
            command, done = self._waiting.pop(0)
            try:
                if control is None:
                    message = (
                        "weights cannot be replaced, and the engine cannot sleep, while the vision encoder has a "
                        "process of its own: load the model without VisionConfig(own_process=True) (--encoder-process)"
                    )
                    raise RequestError(ErrorCode.INVALID_REQUEST, message)
                assert isinstance(command, UpdateWeights | Sleep | WakeUp)
                control.run(command)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def fail(self, error: RequestError) -> None:
        """End all commands with an error."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done.set_exception(error)
