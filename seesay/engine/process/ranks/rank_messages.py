"""The kinds of messages between rank 0 and the ranks that follow it."""

from __future__ import annotations

from typing import Any

from seesay.engine.process.kinds import Hello, LogRecord, Message, Piece, StartFailed

# --- from rank 0 to a follower ----------------------------------------------------------------------------------------


class Follow(Message):
    """Load a slice of a model and follow. `engine` are the fields of the configuration; records of loggers below
    `log_level` are not sent, and a `Beat` is, every `beat_s`."""

    folder: str
    engine: dict[str, Any]
    rank: int
    log_level: int
    beat_s: float


class Collected(Piece):
    """The tokens that rank 0 has learned of the step `number`, by sequence id. Rows that failed are left out."""

    number: int
    token_ids: dict[int, tuple[int, ...]]


class Learning(Message):
    """`collected`: what rank 0 has learned since its last message, and the follower is to learn before anything else:
    the row tables of all ranks are the same when they do the same."""

    collected: tuple[Collected, ...]


class Apply(Learning):
    """Take the deltas of a plan (`encode_plan`), as `ModelRunner.apply` does."""

    plan: bytes


class Step(Learning):
    """Follow a plan up to its launch. Its rows are those that have no errors. `embeddings`: number and dtype of the
    embedding rows that rank 0 will broadcast; None without any."""

    plan: bytes
    embeddings: tuple[int, str] | None


class Sample(Learning):
    """Take the tokens of the step `number`, which rank 0 will broadcast. `jumps` as in `TokenMasks`."""

    number: int
    jumps: dict[int, tuple[int, ...]]


class Call(Message):
    """Do something beside steps, by its name in `follower.py`. It is answered."""

    name: str
    arguments: dict[str, Any]


class Stop(Message):
    """End."""


ToFollower = Follow | Apply | Step | Sample | Call | Stop

# --- from a follower to rank 0 ----------------------------------------------------------------------------------------


class Answer(Message):
    """A call has been done, and returned `value`; `failure` says why not. The first one says that the slice is
    loaded."""

    value: Any
    failure: StartFailed | None


class Doing(Message):
    """Sent while the slice is loaded: `what` the follower does from now on."""

    what: str


class Beat(Message):
    """Sent again and again. `busy_s`: how long the follower has been in its present step; 0 when it is in none."""

    busy_s: float


ToLeader = Hello | Doing | Answer | Beat | LogRecord | StartFailed
