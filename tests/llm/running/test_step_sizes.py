from __future__ import annotations

import pytest

from seesay.llm.running.step_sizes import fill_up, row_sizes, token_sizes


@pytest.mark.parametrize("most", [1, 3, 8, 100, 256, 500, 2048, 4096, 8192, 10_000])
def test_every_number_is_filled_up_a_little(most: int) -> None:
    for sizes in (token_sizes(most), row_sizes(most)):
        assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most
    for count in range(1, most + 1):
        size = fill_up(count, token_sizes(most))
        assert count <= size <= most and size - count < max(8, 64 if count < 2048 else count / 8 + 1)
    assert fill_up(most + 1, row_sizes(most)) == most + 1
