"""Masks are computed by threads of llguidance, beside Python's."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from typing import Any

import numpy as np
from grammars.byte_grammar import END

from seesay.config.grammar import Grammar
from seesay.grammars.masks import CompiledGrammars, MaskRow, MaskThreads
from seesay.grammars.program import make_program

TOKENS = [bytes([byte]) for byte in range(256)] + [
    bytes(token) for token in itertools.product(b"abcdefghijklmnopqrstuvwxyz ", repeat=3)
]


class _Watched(MaskThreads):
    """Counts how often another thread of Python ran while masks were computed."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ticks = self.num_beside = 0

    def _fill(self, wanted: list[tuple[Any, int]], bits: Any) -> None:
        before = self.num_ticks
        super()._fill(wanted, bits)
        self.num_beside += self.num_ticks - before


def test_masks_are_computed_without_the_gil() -> None:
    """While a thread holds it for as long as it likes, nobody else's code in Python runs."""
    grammars = CompiledGrammars(lambda: TOKENS)
    watched, stop = _Watched(), threading.Event()

    def tick() -> None:
        while not stop.is_set():
            watched.num_ticks += 1
            time.sleep(1e-4)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    try:
        sys.setswitchinterval(1000)  # the GIL changes hands only where it is given away
        thread.start()
        until_s = time.monotonic() + 60
        for number in itertools.count():
            text = {"type": "string", "pattern": f"^[a-z]{{1,{20 + number}}}( [a-z]+)*$"}
            program = make_program(Grammar(kind="json_schema", source=json.dumps({"properties": {"a": text}})))
            compiled = grammars.find(program).result(60)
            rows = [
                MaskRow(compiled.make_matcher([END]), np.array(list(b'{"a": "' + b"a" * row), dtype=np.int64))
                for row in range(16)
            ]
            watched.fill(rows, len(TOKENS))
            assert all(row.error is None and row.is_masked for row in rows)
            if watched.num_beside or time.monotonic() > until_s:
                break
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
        grammars.close()
    assert watched.num_beside


def test_rows_together_get_the_masks_that_each_gets_alone() -> None:
    """Some rows are complete, some at an error, some without a mask. Then each has one more token, which all consume at
    once and one alone does not, and which some may not."""
    grammars = CompiledGrammars(lambda: TOKENS)
    sources = ("[a-z]{2,9}( [a-z]+)*", "(abc|abd)*", "a{3}")
    compiled = [grammars.find(make_program(Grammar(kind="regex", source=one))).result(60) for one in sources]
    texts = (b"", b"a", b"abc", b"aaa", b"ab cd", b"!")

    def make_rows() -> list[MaskRow]:
        return [
            MaskRow(compiled[number % 3].make_matcher([END, 7]), np.array(list(texts[number % 7 % 6]), dtype=np.int64))
            for number in range(200)
        ]

    together, alone = make_rows(), make_rows()
    threads = MaskThreads()
    counts = []
    for _ in range(2):
        bits = threads.fill(together, len(TOKENS))
        errors = 0
        for index, row in enumerate(alone):
            [own] = threads.fill([row], len(TOKENS))
            assert str(row.error) == str(together[index].error)
            errors += row.error is not None
            if row.error is None:
                assert row.is_masked == together[index].is_masked
                assert (own == bits[index]).all()
        counts.append(errors)
        together, alone = (
            [
                MaskRow(row.rule, np.append(row.generated_ids, b"abc"[number % 3]))
                for number, row in enumerate(rows)
                if row.error is None
            ]
            for rows in (together, alone)
        )
    grammars.close()
    assert 0 < counts[0] < 200 and 0 < counts[1] < 200 - counts[0]
