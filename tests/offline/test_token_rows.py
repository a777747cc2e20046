"""Token ids in every form that Transformers gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from seesay.demo import CHECKPOINT
from seesay.offline.token_rows import read_token_rows

MESSAGES = [{"role": "user", "content": "how many shapes are there?"}]
LONGER = [*MESSAGES, {"role": "assistant", "content": "There are three shapes."}, {"role": "user", "content": "and?"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(CHECKPOINT)


def ids_of(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[int, ...]:
    return tuple(tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))["input_ids"])


@pytest.mark.parametrize("form", [None, "np", "pt"])
@pytest.mark.parametrize("return_dict", [True, False])
def test_what_apply_chat_template_returns(tokenizer: Any, form: str | None, return_dict: bool) -> None:
    options = {"return_tensors": form, "return_dict": return_dict}
    short, long = ids_of(tokenizer, MESSAGES), ids_of(tokenizer, LONGER)
    assert read_token_rows(tokenizer.apply_chat_template(MESSAGES, **options)) == [short]
    both = [MESSAGES, LONGER]
    assert read_token_rows([tokenizer.apply_chat_template(messages, **options) for messages in both]) == [short, long]
    if form is None:
        assert read_token_rows(tokenizer.apply_chat_template(both, return_dict=return_dict)) == [short, long]
    for side in ("left", "right"):
        tokenizer.padding_side = side
        padded = tokenizer.apply_chat_template(both, padding=True, **options)
        if return_dict:
            assert read_token_rows(padded) == [short, long]


def test_the_default_of_transformers(tokenizer: Any) -> None:
    assert read_token_rows(tokenizer.apply_chat_template(MESSAGES)) == [ids_of(tokenizer, MESSAGES)]
    assert read_token_rows(tokenizer("a red circle")) == [tuple(tokenizer.encode("a red circle"))]


def test_plain_forms() -> None:
    for one in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), [np.int64(1), 2, 3]):
        assert read_token_rows(one) == [(1, 2, 3)]
    for two in ([[1, 2], [3]], [np.array([1, 2]), torch.tensor([3])], ((1, 2), (3,))):
        assert read_token_rows(two) == [(1, 2), (3,)]
    tensors = [torch.tensor([[1, 2]]), torch.tensor([[3]])]
    for nested in ([np.array([[1, 2]]), [3]], tensors, [{"input_ids": [1, 2]}, [3]]):
        assert read_token_rows(nested) == [(1, 2), (3,)]
    assert read_token_rows([]) == read_token_rows(np.array([])) == []
    assert read_token_rows([[], [1]]) == [(), (1,)] and read_token_rows([[]]) == [()]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("text", "must be a list of token ids"),
        (["text"], "must be a list of token ids"),
        (5, "must be a list of token ids"),
        ([1.5, 2], "must be a list of token ids"),
        ([1, [2]], "must be a list of token ids"),
        ([1, {"input_ids": [1]}], "must be a list of token ids"),
        ([[[[1, 2]]]], "must be a list of token ids"),
        ({"ids": [1, 2]}, "has no input_ids, only ids"),
        ({"input_ids": [1, 2], "pixel_values": np.zeros(3)}, "pixel_values is not supported"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "must have the same shape"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 1], [1, 1]]}, "must have the same shape"),
    ],
    ids=str,
)
def test_what_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_token_rows(wrong)
