"""Mistral's tekken.json: ids are those of the published rule, written out in `tekken_files`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tekken_files import LATER, NUM_SPECIAL, SPECIAL, TOKENS, encode_by_rule, make_tekken, write_tekken

from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import RenderedPrompt


def test_ids_are_special_tokens_and_then_ranks(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path))
    assert tokenizer.vocab_size == NUM_SPECIAL + len(TOKENS)
    fillers = [f"<SPECIAL_{id_}>" for id_ in range(len(SPECIAL), NUM_SPECIAL)]
    assert [tokenizer.token_text(id_) for id_ in range(NUM_SPECIAL)] == [*SPECIAL, *fillers]
    assert tokenizer.special_ids == frozenset(range(NUM_SPECIAL))
    rng, seen = random.Random(5), set[int]()
    alphabet = ["a", "b", "c", "the", "ing", " ", "  ", "\n", "-", "1", "lle", "不是", "é", "ST", "😀", "/", "Ab"]
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 30)))
        ids = encode_by_rule(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
        seen |= set(ids)
    assert len(seen & set(range(NUM_SPECIAL + 256, NUM_SPECIAL + len(TOKENS)))) > 9, "few of the longer tokens"


def test_every_byte_is_a_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path))
    spelled = [tokenizer.spelling.bytes_of(NUM_SPECIAL + byte) for byte in range(256)]
    assert spelled == [bytes([byte]) for byte in range(256)]


def test_a_text_begins_with_bos_and_an_answer_ends_with_eos(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.encode("the", add_special_tokens=True) == [1, *encode_by_rule("the")]
    assert tokenizer.encode("[INST]the[/INST]</s>") == [3, *encode_by_rule("the"), 4, 2]


def test_what_users_type_is_no_special_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path))
    text = "[INST]</s>[/INST]"
    prompt = RenderedPrompt(text=text, markers=(), media=(), literals=((6, 10),))
    ids, _ = tokenizer.encode_prompt(prompt)
    assert ids.tolist() == [1, 3, *encode_by_rule("</s>"), 4]


def test_later_files_list_their_special_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tekken(tmp_path, "v13"))
    assert [tokenizer.token_id(text) for text in LATER] == list(range(len(LATER)))


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    made = Tokenizer.load(write_tekken(tmp_path))
    made.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tekken.json").write_text("{")
    assert Tokenizer.load(tmp_path).vocab_size == made.vocab_size


def of_config(**changes: Any) -> dict[str, Any]:
    return {"config": {**make_tekken()["config"], **changes}}


def of_vocab(place: int, **changes: Any) -> dict[str, Any]:
    vocab = make_tekken()["vocab"]
    vocab[place] = {**vocab[place], **changes}
    return {"vocab": vocab}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": []}, "config must be an object"),
        (of_config(default_vocab_size=1 << 21), "default_vocab_size must be an integer from 1 to 1048576"),
        (of_config(default_vocab_size=True), "default_vocab_size must be an integer from 1"),
        (of_config(default_num_special_tokens=100_000), "default_num_special_tokens must be an integer from 1 to"),
        (of_config(default_num_special_tokens=19), "special_tokens are 20, more than"),
        (of_config(default_vocab_size=400), "vocab must be a list of 370 tokens or more, got 275"),
        (of_config(default_vocab_size=200), "vocab has 170 tokens, fewer than the 256 bytes"),
        (of_config(pattern=5), "config.pattern must be a text, got '5'"),
        (of_config(pattern="(?<"), "config.pattern cannot be used"),
        (of_config(version="v11"), "special_tokens is missing, which a file of version 'v11' must have"),
        ({"vocab": {}}, "vocab must be a list of 273 tokens"),
        (of_vocab(3, rank=4), "vocab: must have token_bytes in base64 for rank 3"),
        (of_vocab(3, token_bytes=5), "vocab: must have token_bytes in base64 for rank 3"),
        (of_vocab(3, token_bytes="*"), "vocab: token_bytes of rank 3 are not base64"),
        (of_vocab(3, token_bytes="é"), "vocab: token_bytes of rank 3 are not base64"),
        (of_vocab(3, token_bytes="YQ=="), "vocab: rank 3 must be the byte 3, got the bytes b'a'"),
        (of_vocab(260, token_bytes=""), "vocab: rank 260 must be a new token"),
        (of_vocab(260, token_bytes="YQ=="), "vocab: rank 260 must be a new token, got the bytes b'a'"),
        (of_vocab(260, token_bytes="PHM+"), "the special token '<s>' is also a token of its vocabulary"),
        (of_vocab(260, token_bytes="YWFh" * 5000), "the squared lengths of its tokens add up to more than"),
        ({"special_tokens": {}}, "special_tokens must be a list"),
        ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "must be objects with token_str and rank 0"),
        ({"special_tokens": [{"rank": 0, "token_str": ""}]}, "must be objects with token_str and rank 0"),
        ({"special_tokens": [{"rank": i, "token_str": "<s>"} for i in (0, 1)]}, "special_tokens has a token twice"),
    ],
)  # fmt: skip
def test_damaged_files(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.load(write_tekken(tmp_path, **changes))
    assert str(tmp_path / "tekken.json") in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"config": ' + "9" * 5000 + "}"])
def test_files_that_are_no_such_object(content: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        Tokenizer.load(tmp_path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "tekken.json").open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(CheckpointError, match="has more than 33554432 bytes"):
        Tokenizer.load(tmp_path)
