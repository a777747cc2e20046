"""Load the tokenizer of a folder that has the first Qwen's qwen.tiktoken, or Kimi's tiktoken.model, and no
tokenizer.json.

The file is that of the library tiktoken: a line for each token, its bytes in base64 and its rank, which is its id.
Texts are cut into pieces by a pattern; in a piece, the two neighbours that together are the token of the lowest rank
become one, again and again (byte-level BPE, Sennrich et al. 2016).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from seesay.checkpoint.files import read_object
from seesay.errors import CheckpointError
from seesay.processors.text.byte_alphabet import byte_alphabet
from seesay.processors.text.sentencepiece_folder import wrap_converted

FILE, KIMI_FILE = "qwen.tiktoken", "tiktoken.model"

_CLASS = "QWenTokenizer"
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pieces of a text, a constant of the published tokenizer."""
_KIMI_CLASS = "TikTokenTokenizer"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI_PATTERN = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KIMI_RESERVED = 256
"""Tokens behind those of the file."""
_END = "<|endoftext|>"
_SPECIAL = (_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_TAGS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
"""Tokens of Qwen-VL around what an answer points at. They stand in answers, and people write them into questions."""
_PICTURE_TAGS = ("<img>", "</img>", "<imgpad>")
_MAX_TOKENS = 1 << 20
MAX_WORK = 100_000_000
"""Steps that finding the merges may take: the sum of the tokens' squared lengths. Qwen's has 8 million."""


def load_tiktoken(folder: Path) -> Any:
    """Return a fast tokenizer of Transformers with the ids of the folder's qwen.tiktoken, and of the tokens that the
    published code adds: those of Qwen-VL where config.json has a tower. No code of the checkpoint is needed or run.

    Raises `CheckpointError` for a damaged file, and for a tokenizer of another class.
    """
    config = _read_config(folder, FILE, _CLASS)
    ranks = read_ranks(folder / FILE)
    tokenizer = make_tokenizer(ranks, find_merges(ranks), _PATTERN)
    tokenizer.normalizer = normalizers.NFC()
    has_tower = (read_object(folder / "config.json") or {}).get("visual") is not None
    added = (*_SPECIAL, *_TAGS, *_PICTURE_TAGS) if has_tower else _SPECIAL
    tokenizer.add_tokens([AddedToken(text, special=text not in _TAGS, normalized=False) for text in added])
    return wrap_converted(tokenizer, folder, {"eos_token": _END, **config})


def load_kimi(folder: Path) -> Any:
    """As `load_tiktoken`, of the folder's tiktoken.model; what its 256 further tokens are called is in
    tokenizer_config.json."""
    config = _read_config(folder, KIMI_FILE, _KIMI_CLASS)
    ranks = read_ranks(folder / KIMI_FILE)
    tokenizer = make_tokenizer(ranks, find_merges(ranks), _KIMI_PATTERN)
    tokenizer.add_tokens(_list_reserved(folder, config.get("added_tokens_decoder", {}), len(ranks)))
    return wrap_converted(tokenizer, folder, {key: config[key] for key in config if key != "added_tokens_decoder"})


def _read_config(folder: Path, file: str, expected: str) -> Mapping[str, object]:
    """Return the folder's tokenizer_config.json. Raises `CheckpointError` for a tokenizer of another class."""
    config = read_object(folder / "tokenizer_config.json") or {}
    if (kind := config.get("tokenizer_class", expected)) != expected:
        raise CheckpointError(f"{folder}: {file} is read as a {expected}, tokenizer_config.json has {str(kind)[:40]!r}")
    return config


def _list_reserved(folder: Path, named: object, first: int) -> list[AddedToken]:
    """Return the tokens from id `first` on, of which some are `named`. Raises `CheckpointError` for names that are not
    those of tokens."""
    where = f"{folder / 'tokenizer_config.json'}: added_tokens_decoder"
    if not isinstance(named, Mapping):
        raise CheckpointError(f"{where} must be an object, got {str(named)[:40]!r}")
    tokens = {str(id_): AddedToken(f"<|reserved_token_{id_}|>", special=True, normalized=False)
              for id_ in range(first, first + _KIMI_RESERVED)}  # fmt: skip
    for id_, entry in named.items():
        text = entry.get("content") if isinstance(entry, Mapping) else None
        if id_ not in tokens or not isinstance(text, str) or not text:
            raise CheckpointError(
                f"{where} must give the content of tokens {first} to {first + _KIMI_RESERVED - 1}, got "
                f"{str(entry)[:40]!r} for {str(id_)[:40]}"
            )
        tokens[id_] = AddedToken(text, special=bool(entry.get("special", True)), normalized=False)
    if len({token.content for token in tokens.values()}) < len(tokens):
        raise CheckpointError(f"{where} gives two tokens the same content")
    return list(tokens.values())


def read_ranks(file: Path) -> dict[str, int]:
    """Return the rank of each token of a .tiktoken file, whose bytes are spelled in the letters of `byte_alphabet`.
    Raises `CheckpointError` naming the first line that is damaged, or the number of bytes that are not tokens."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    ranks: dict[str, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        encoded, _, rank = line.partition(b" ")
        token = "".join(map(letters.__getitem__, _decode_token(encoded)))
        if not token or token in ranks or rank != str(len(ranks)).encode():
            raise CheckpointError(
                f"{file}: line {number} must be the bytes of a new token in base64 and its rank {len(ranks)}, got "
                f"{line[:40].decode(errors='replace')!r}"
            )
        ranks[token] = len(ranks)
        if len(ranks) > _MAX_TOKENS:
            raise CheckpointError(f"{file}: has more than {_MAX_TOKENS} tokens")
    _check_tokens(file, ranks)
    return ranks


def _check_tokens(file: Path, tokens: Collection[str]) -> None:
    if missing := [letter for letter in byte_alphabet() if letter not in tokens]:
        raise CheckpointError(f"{file}: {len(missing)} of the 256 bytes are not tokens: the file is cut off or damaged")
    if (work := sum(len(token) ** 2 for token in tokens)) > MAX_WORK:
        raise CheckpointError(f"{file}: the squared lengths of its tokens add up to {work}, more than {MAX_WORK}")


def _decode_token(encoded: bytes) -> bytes:
    """Return the bytes of a token; none if they are not valid base64."""
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return b""


def find_merges(ranks: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the two tokens of which each longer one is made, by its rank.

    There is one such pair: when a token is made in a text, all pairs of lower rank have been joined in it, in the same
    order as in the token alone. A token that its bytes do not lead to has none; it stands only for a piece of its own.
    """
    for token, rank in ranks.items():
        parts = list(token)
        while len(parts) > 2:
            found = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            lowest = min(found)
            if lowest >= rank:
                break
            place = found.index(lowest)
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        if len(parts) == 2:
            yield parts[0], parts[1]


def make_tokenizer(vocabulary: Mapping[str, int], merges: Iterator[tuple[str, str]], pattern: str) -> Tokenizer:
    """Return a tokenizer of the ids in `vocabulary`, which cuts texts by `pattern`."""
    model = models.BPE(vocab=dict(vocabulary), merges=list(merges), ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
