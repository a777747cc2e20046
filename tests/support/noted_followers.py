"""Followers that note what rank 0 has them do, and answer what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class NotedFollowers:
    """calls: names and arguments of what was called; answers: what the others return, by name. fails: what is raised
    once all are done, by name. told: messages. given_up: why the model was ended."""

    def __init__(self, *, is_local: bool = True) -> None:
        self.executor = SimpleNamespace(is_local=is_local)
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {}
        self.fails: dict[str, BaseException] = {}
        self.told: list[Any] = []
        self.given_up: list[BaseException] = []

    def call(self, name: str, work: Callable[[], Any], arguments: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        self.calls.append((name, dict(arguments)))
        own = work()
        if name in self.fails:
            raise self.fails.pop(name)
        return own, self.answers.get(name, [])

    def tell(self, message: Any) -> None:
        self.told.append(message)

    def give_up(self, error: BaseException) -> None:
        self.given_up.append(error)

    def names(self) -> list[str]:
        """The calls since the last one of this."""
        calls, self.calls = self.calls, []
        return [name for name, _ in calls]
