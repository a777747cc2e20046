"""Takes the messages of an engine process."""

from __future__ import annotations

import logging

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.failures import HungError, restore_failure
from seesay.engine.process.origin import Child, Origin
from seesay.engine.process.remote.command_sender import CommandSender
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.token_messages import CoreFacts
from seesay.engine.watchdog import find_hung, hang_limit_s
from seesay.values import EngineStats


class MessageTaker:
    """Hands on what processes say, in the thread that hears them. stats: the counts that came last."""

    def __init__(
        self,
        state: ProcessState,
        origin: Origin,
        sender: RequestSender,
        commands: CommandSender,
        *,
        step_timeout_s: float | None,
    ) -> None:
        self.stats = EngineStats()
        self._state = state
        self._changed = state.changed
        self._origin = origin
        self._sender = sender
        self._commands = commands
        self._step_timeout_s = step_timeout_s

    def take(self, child: Child, message: kinds.ToFrontend) -> Exception | None:
        """Take a message. Returns why the process must end, if it must."""
        match message:
            case kinds.Outputs(outputs, news):
                self._take_news(news)
                self._sender.requests.take_outputs(outputs)
            case kinds.Beat(busy_s, news):
                self._take_news(news)
                if hung := find_hung(busy_s, self._limit_s()):
                    return HungError(hung)
            case kinds.FeaturesWanted(request_id, item_index):
                self._take_wish(request_id, item_index)
            case kinds.Done(_, _, _, news):
                self._take_news(news)
                self._commands.take(message)
            case kinds.StatusChanged(status):
                self._state.status = status
            case kinds.LogRecord(name, level, text):
                logging.getLogger(name).log(level, "%s", text)
            case kinds.Hello():
                child.link.send(self._origin.answer_hello(self._state.status))
            case kinds.Started(facts, status):
                self._take_start(child, facts, status)
            case kinds.StartFailed():
                return restore_failure(message)
        return None

    def _take_start(self, child: Child, facts: CoreFacts, status: ModelStatus) -> None:
        """The process takes requests: send it those that wait."""
        with self._changed:
            self._state.note_start(child, facts, status)
            waiting = self._sender.requests.ledger.waiting()
        for entry in waiting:
            self._sender.send(entry)

    def _take_wish(self, request_id: int, item_index: int) -> None:
        """The process wants features that were not sent with their request."""
        with self._changed:
            item = self._sender.requests.ledger.find_item(request_id, item_index)
        if item is not None and item.has_arrays:
            self._sender.give_features(request_id, item_index, item.features)
        elif item is not None and self._sender.requests.listener is not None:
            self._sender.requests.listener.on_features_wanted(request_id, item_index)

    def _take_news(self, news: kinds.News) -> None:
        with self._changed:
            self._sender.requests.ledger.embeddings.update(news.encoded, news.dropped)
        if (listener := self._sender.requests.listener) is not None:
            for item_hash in news.encoded:
                listener.on_encoding(item_hash)
        if news.stats is not None:
            if news.stats.total_step_tokens:  # also those of other frontends
                self._state.note_tokens()
            self.stats = news.stats

    def _limit_s(self) -> float:
        assert self._state.facts is not None
        return hang_limit_s(self._step_timeout_s, self._state.facts.device)
