"""Embeddings that a process has, makes, or gets the arrays of."""

from __future__ import annotations

from seesay.engine.process.remote.known_embeddings import KnownEmbeddings


def test_what_was_sent_is_on_its_way_until_the_last_request_of_it_is_taken_back() -> None:
    known = KnownEmbeddings()
    assert b"a" not in known
    known.note_sent(b"a")
    known.note_sent(b"b")
    known.note_sent(b"a")
    assert b"a" in known and b"b" in known and not known.encoded
    known.take_back([b"a", b"b"])
    assert b"a" in known and b"b" not in known, "another request has it"
    known.take_back(iter([b"a"]))
    assert b"a" not in known
    known.take_back([])
    known.note_sent(b"a")
    assert b"a" in known, "it counts from the beginning"
    known.take_back([b"a"])
    assert b"a" not in known


def test_what_the_process_tells_of_is_there_until_it_is_dropped() -> None:
    known = KnownEmbeddings()
    known.update([b"a", b"b"], [])
    known.update([b"c"], [b"a"])
    assert known.encoded == {b"b", b"c"} and b"a" not in known and b"b" in known and b"c" in known
    known.update([b"d"], [b"d", b"e"])
    assert b"d" not in known, "it has come and gone"


def test_one_may_be_both() -> None:
    known = KnownEmbeddings()
    known.note_sent(b"a")
    known.update([b"a"], [])
    known.take_back([b"a"])
    assert b"a" in known
    known.note_sent(b"a")
    known.update([], [b"a"])
    assert b"a" in known, "its arrays come again"
