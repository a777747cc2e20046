"""A rank without a model, which does what `Follow.engine` says under 'does': fails, dies, is slow, is busy, is silent,
or answers calls, of which those named 'fails' do."""

from __future__ import annotations

import os

from seesay.engine.process.failures import describe_failure
from seesay.engine.process.kinds import Hello
from seesay.engine.process.link import receive_next
from seesay.engine.process.parent import Parent
from seesay.engine.process.ranks import rank_messages
from seesay.errors import ConfigError


def main() -> None:
    parent = Parent(receives=rank_messages.ToFollower)
    link = parent.link
    link.send(Hello())
    start = receive_next(link)
    parent.confirm()
    link.send(rank_messages.Beat(0.0))
    does = start.engine["does"] if start.rank == start.engine.get("rank", 1) else "answers"
    if does == "fails":
        link.send(describe_failure(ConfigError("no room")))
    elif does == "dies":
        os._exit(3)
    elif does == "is slow":
        link.send(rank_messages.Doing("loading"))
    elif does == "is busy":
        link.send(rank_messages.Beat(99.0))
    elif does == "answers":
        link.send(rank_messages.Answer(None, None))
    while not isinstance(message := receive_next(link), rank_messages.Stop):
        if does == "answers":
            failure = describe_failure(MemoryError("full")) if message.name == "fails" else None
            link.send(rank_messages.Answer([message.name, start.rank, message.arguments], failure))
    os._exit(0)


if __name__ == "__main__":
    main()
