from __future__ import annotations

from typing import Any

import numpy as np

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.scheduling.prefix import digest, extend_block_keys
from seesay.values import MediaItem, Modality


def make_item(start: int, stop: int, number: int, slots: list[int] | None = None) -> MediaItem:
    return MediaItem(
        modality=Modality.IMAGE,
        span=(start, stop),
        slots=np.array(slots if slots is not None else range(start, stop), dtype=np.int64),
        hash=number.to_bytes(32, "little"),
        features={},
        num_units=1,
    )


def make_keys(num_blocks: int = 4, **changed: Any) -> list[BlockKey]:
    options: dict[str, Any] = {"token_ids": np.arange(20), "items": (), "salt": b"", "block_size": 4} | changed
    keys: list[BlockKey] = []
    extend_block_keys(keys, num_blocks, **options)
    return keys


def count_equal(a: list[BlockKey], b: list[BlockKey]) -> int:
    return sum(x.hash == y.hash for x, y in zip(a, b, strict=True))


def test_digest_has_32_bytes() -> None:
    assert len(digest(b"")) == 32
    assert digest(b"a") != digest(b"b")


def test_keys_do_not_depend_on_how_many_are_made_at_once() -> None:
    items = (make_item(2, 7, 1), make_item(9, 10, 2))
    at_once = make_keys(5, items=items)
    keys: list[BlockKey] = []
    for num_blocks in (1, 1, 3, 5):
        extend_block_keys(keys, num_blocks, token_ids=np.arange(20), items=items, salt=b"", block_size=4)
    assert keys == at_once


def test_a_changed_token_changes_its_block_and_all_after_it() -> None:
    token_ids = np.arange(20)
    token_ids[6] = 99
    assert count_equal(make_keys(), make_keys(token_ids=token_ids)) == 1


def test_the_salt_separates_everything() -> None:
    assert count_equal(make_keys(), make_keys(salt=b"tenant")) == 0


def test_another_picture_changes_every_block_from_where_it_begins() -> None:
    one, other = make_keys(items=(make_item(5, 10, 1),)), make_keys(items=(make_item(5, 10, 2),))
    assert count_equal(one, other) == 1
    assert count_equal(one, make_keys()) == 1


def test_where_a_picture_lies_and_what_it_fills_matter() -> None:
    base = make_keys(items=(make_item(5, 10, 1),))
    assert count_equal(base, make_keys(items=(make_item(6, 11, 1),))) == 1
    assert count_equal(base, make_keys(items=(make_item(5, 10, 1, [6, 7, 8]),))) == 1


def test_a_picture_that_spans_blocks_is_in_each_of_them() -> None:
    """The second block has no own difference but the rows of the embedding that it takes."""
    one = make_keys(1, token_ids=np.zeros(8, np.int64), items=(make_item(0, 8, 1),))
    both = make_keys(2, token_ids=np.zeros(8, np.int64), items=(make_item(0, 8, 1),))
    assert both[0] == one[0]
    assert (1).to_bytes(32, "little") in both[1].content


def test_the_content_names_all_that_the_block_depends_on() -> None:
    first, second = make_keys(2)
    assert first.hash in second.content
    assert np.arange(4, 8).tobytes() in second.content
    assert digest(second.content) == second.hash
