"""The tokenizer files of the first Qwen and of Kimi: the ids are those of tiktoken's algorithm, written out plainly."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import regex

from seesay.errors import CheckpointError
from seesay.processors.text.tiktoken_folder import FILE, KIMI_FILE, find_merges, read_ranks
from seesay.processors.text.tokenizer import Tokenizer

PIECES = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI_PIECES = regex.compile(
    r"(?V1)[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Han}]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Han}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Han}]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Han}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""As published, with a difference of sets for the intersection with all but Chinese characters."""
LONGER = [
    "th",
    "he",
    "the",
    "in",
    "ing",
    "ab",
    "bc",
    "abc",
    " t",
    " the",
    "aa",
    "aaa",
    "--",
    "----",
    "é",
    "不",
    "不是",
    "'l",
]
BYTES = [bytes([byte]) for byte in (*range(0x21, 0x7F), *range(0x21), *range(0x7F, 0x100))]
TOKENS = [*BYTES, *dict.fromkeys(t.encode() for t in (*LONGER, "lle", "  ") if len(t.encode()) > 1)]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
TAGS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>", "<img>", "</img>", "<imgpad>")


def write(folder: Path, tokens: list[bytes] = TOKENS, **config: object) -> Path:
    lines = [base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)]
    (folder / FILE).write_bytes(b"".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "QWenTokenizer"}))
    (folder / "tokenization_qwen.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen", **config}))
    return folder


def write_kimi(folder: Path, added: object, **config: object) -> Path:
    lines = [base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(TOKENS)]
    (folder / KIMI_FILE).write_bytes(b"".join(lines))
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added, **config}
    settings["auto_map"] = {"AutoTokenizer": ["tokenization_moonshot.TikTokenTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_moonshot.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_vl"}))
    return folder


def encode_plainly(text: str, pattern: regex.Pattern[str] = PIECES) -> list[int]:
    """Join the neighbours whose bytes are the token of the lowest rank, the leftmost first, until none are a token."""
    ranks = {token: rank for rank, token in enumerate(TOKENS)}
    ids = []
    for piece in pattern.finditer(unicodedata.normalize("NFC", text) if pattern is PIECES else text):
        data = piece[0].encode()
        parts = [data] if data in ranks else [bytes([byte]) for byte in data]
        while len(parts) > 1:
            found = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
            if min(found) == len(ranks):
                break
            place = found.index(min(found))
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [ranks[part] for part in parts]
    return ids


def test_ids_are_those_of_tiktokens_algorithm(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path))
    rng, seen = random.Random(7), set[int]()
    alphabet = [
        "a",
        "b",
        "c",
        "t",
        "h",
        "e",
        "the",
        "ing",
        " ",
        "  ",
        "\n",
        "-",
        "1",
        "'ll",
        "'S",
        "不是",
        "e\u0301",
        "😀",
    ]
    for _ in range(400):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 30)))
        ids = encode_plainly(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
        seen |= set(ids)
    assert len(seen & set(range(256, len(TOKENS)))) > 12, "the texts have few of the longer tokens"


def test_a_token_that_no_merge_makes_stands_for_a_piece_of_its_own(tmp_path: Path) -> None:
    ranks = read_ranks(write(tmp_path) / FILE)
    whole = "".join(letter for letter, rank in ranks.items() if rank == TOKENS.index("不是".encode()))
    made = {left + right for left, right in find_merges(ranks)}
    assert whole not in made and "lle" not in made and "the" in made
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("lle") == [TOKENS.index(b"lle")]
    assert tokenizer.encode("xlle") == encode_plainly("xlle") == [TOKENS.index(letter.encode()) for letter in "xlle"]


def test_special_tokens_lie_behind_the_others(tmp_path: Path) -> None:
    """Those of Qwen-VL only beside a tower; its tags of places are text that an answer shows."""
    (text, vision) = (tmp_path / name for name in ("text", "vision"))
    for folder in (text, vision):
        folder.mkdir()
    plain = Tokenizer.load(write(text))
    assert [plain.token_id(token) for token in SPECIAL] == [len(TOKENS) + i for i in range(208)]
    assert plain.token_id("<img>") is None and plain.vocab_size == len(TOKENS) + 208
    tokenizer = Tokenizer.load(write(vision, visual={"width": 32}))
    assert [tokenizer.token_id(token) for token in TAGS] == [len(TOKENS) + 208 + i for i in range(9)]
    ids = tokenizer.encode("<ref>abc</ref><img></img><|im_end|>")
    assert tokenizer.decode(ids) == "<ref>abc</ref>" and len(ids) == 6
    assert tokenizer.named_tokens["eos_token"] == "<|endoftext|>" and not tokenizer.encode("", add_special_tokens=True)


def test_its_facts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Tokenizer.load(write(tmp_path))
    monkeypatch.setattr("seesay.processors.text.tiktoken_folder.find_merges", None)
    assert Tokenizer.load(tmp_path).digest == first.digest
    write(tmp_path, TOKENS[:-1])
    with pytest.raises(CheckpointError, match="cannot load the tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"IQ== 0\nIg==\n", "line 2 must be the bytes of a new token in base64 and its rank 1, got 'Ig=='"),
        (b"IQ== 0\nIQ== 1\n", "line 2 must be"),
        (b"IQ== 1\n", "line 1 must be"),
        (b"IQ== 0\n!! 1\n", "line 2 must be"),
        (b"IQ== 0\n 1\n", "line 2 must be"),
        (b"IQ== 0\nIg== 01\n", "line 2 must be"),
        (b"", "256 of the 256 bytes are not tokens"),
        (b"\xff\xfe", "line 1 must be"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(tmp_path)


def test_tokens_that_would_take_long_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [*BYTES, *(bytes([byte]) * 8192 for byte in range(2))])
    with pytest.raises(CheckpointError, match="squared lengths of its tokens add up to 134"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_of_another_class_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OtherTokenizer"}))
    with pytest.raises(CheckpointError, match=r"qwen\.tiktoken is read as a QWenTokenizer.*'OtherTokenizer'"):
        Tokenizer.load(tmp_path)


# --- Kimi's -----------------------------------------------------------------------------------------------------------

FIRST = len(TOKENS)
ADDED = {
    str(FIRST): {"content": "[BOS]", "special": True},
    str(FIRST + 1): {"content": "[EOS]", "special": True},
    str(FIRST + 4): {"content": "<|im_end|>", "special": True},
    str(FIRST + 7): {"content": "<|tool_call_begin|>", "special": False},
}


def test_ids_of_kimi_are_those_of_tiktokens_algorithm(tmp_path: Path) -> None:
    """Its pieces are others: Chinese characters stand apart, numbers have up to three digits, short forms stay."""
    tokenizer = Tokenizer.load(write_kimi(tmp_path, ADDED))
    rng, seen = random.Random(11), set[int]()
    alphabet = [
        "a", "B", "C", "the", "THE", "ing", " ", "  ", "\n", "-", "1", "23", "'ll", "'S", "不", "不是", "あ", "e\u0301",
        "é", "😀", "ǅ", "ʰ",
    ]  # fmt: skip
    for _ in range(400):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 30)))
        ids = encode_plainly(text, KIMI_PIECES)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
        seen |= set(ids)
    assert len(seen & set(range(256, len(TOKENS)))) > 8, "the texts have few of the longer tokens"


def test_tokens_of_kimi_behind_those_of_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_kimi(tmp_path, ADDED, bos_token="[BOS]", eos_token="[EOS]"))
    assert tokenizer.vocab_size == FIRST + 256 and tokenizer.named_tokens["eos_token"] == "[EOS]"
    assert tokenizer.encode(f"a<|im_end|><|reserved_token_{FIRST + 5}|>")[1:] == [FIRST + 4, FIRST + 5]
    ids = tokenizer.encode("a<|tool_call_begin|>b[EOS]", add_special_tokens=True)
    assert ids[1] == FIRST + 7 and ids[-1] == FIRST + 1 and tokenizer.decode(ids) == "a<|tool_call_begin|>b"


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([], "added_tokens_decoder must be an object"),
        ({"3": {"content": "x"}}, f"must give the content of tokens {FIRST} to {FIRST + 255}, got .* for 3"),
        ({str(FIRST + 256): {"content": "x"}}, "must give the content"),
        ({str(FIRST): {"content": 4}}, "must give the content"),
        ({str(FIRST): "x"}, "must give the content"),
        ({str(FIRST + n): {"content": "x"} for n in (0, 1)}, "gives two tokens the same content"),
    ],
)
def test_damaged_names_of_kimi_are_refused(tmp_path: Path, added: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(write_kimi(tmp_path, added))


def test_another_tokenizer_than_kimis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tiktoken\.model is read as a TikTokenTokenizer.*'Other'"):
        Tokenizer.load(write_kimi(tmp_path, ADDED, tokenizer_class="Other"))
