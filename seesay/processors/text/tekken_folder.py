"""Load the tokenizer of a folder that has Mistral's tekken.json and no tokenizer.json.

The file has the bytes of each token with its rank, the pattern that cuts texts into pieces, and the special tokens. It
is read as mistral-common reads it: the special tokens have the first ids, the others follow by rank, and what is more
than the size of the vocabulary is left out. In a piece, tokens are joined as in tiktoken's files (`tiktoken_folder`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from seesay.checkpoint.fields import read_count, read_part
from seesay.checkpoint.tekken_file import FILE, read_tekken
from seesay.errors import CheckpointError
from seesay.processors.text.byte_alphabet import byte_alphabet
from seesay.processors.text.sentencepiece_folder import wrap_converted
from seesay.processors.text.tiktoken_folder import MAX_WORK, find_merges, make_tokenizer
from seesay.processors.text.tokenizer_trial import try_tokenizer

_LETTERS: Mapping[int, str] = {byte: letter for letter, byte in byte_alphabet().items()}
_MAX_TOKENS = 1 << 20
_OLDER = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""The special tokens of files that do not list them: those of the versions up to 7."""
_LISTLESS_VERSIONS = ("v1", "v2", "v3", "v7")
_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tekken:
    """The content of a tekken.json. special: in the order of their ids, from 0 on. ranks: the rank of each other token,
    whose bytes are spelled in the letters of `byte_alphabet`. pattern: see `tiktoken_folder`."""

    special: tuple[str, ...]
    ranks: Mapping[str, int]
    pattern: str

    @classmethod
    def read(cls, file: Path) -> Tekken:
        """Return the checked content of a file. Raises `CheckpointError` naming what is damaged."""
        content = read_tekken(file)
        try:
            config = read_part(content, "config")
            pattern, size = config.get("pattern"), read_count(config, "default_vocab_size", most=_MAX_TOKENS)
            num_special = read_count(config, "default_num_special_tokens", most=size - 1)
            if not isinstance(pattern, str) or not pattern:
                raise CheckpointError(f"config.pattern must be a text, got {str(pattern)[:40]!r}")
            special = _read_special(content.get("special_tokens"), config.get("version"), num_special)
            ranks = _read_ranks(content.get("vocab"), size - num_special)
            if shared := next((text for text in special if text in ranks), None):
                raise CheckpointError(f"the special token {shared[:40]!r} is also a token of its vocabulary")
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from None
        return cls(special=special, ranks=ranks, pattern=pattern)

    def make_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which puts `<s>` before a text, if that is a token."""
        first = len(self.special)
        vocabulary = {text: id_ for id_, text in enumerate(self.special)}
        vocabulary |= {token: first + rank for token, rank in self.ranks.items()}
        tokenizer = make_tokenizer(vocabulary, find_merges(self.ranks), self.pattern)
        tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in self.special])
        bos = _NAMES["bos_token"]
        if bos in vocabulary:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, vocabulary[bos])]
            )
        return tokenizer


def load_tekken(folder: Path) -> Any:
    """Return a fast tokenizer of Transformers with the ids of the folder's tekken.json. Raises `CheckpointError` for a
    damaged file, and for one whose tokenizer takes too much time or memory."""
    file = folder / FILE
    tekken = Tekken.read(file)
    try:
        tokenizer = tekken.make_tokenizer()
    except Exception as error:  # tokenizers raises nothing narrower for a pattern that is not valid
        raise CheckpointError(f"{file}: config.pattern cannot be used: {str(error)[:200]}") from None
    with TemporaryDirectory() as made:
        tokenizer.save(str(Path(made) / FILE))
        try_tokenizer(Path(made) / FILE, origin=file)
    names = {name: text for name, text in _NAMES.items() if text in tekken.special}
    return wrap_converted(tokenizer, folder, names)


def _read_special(listed: object, version: object, num_special: int) -> tuple[str, ...]:
    """Return the special tokens by id: those of the list, and fillers up to their number."""
    if listed is None:
        if version not in _LISTLESS_VERSIONS:
            raise CheckpointError(f"special_tokens is missing, which a file of version {str(version)[:20]!r} must have")
        found = list(_OLDER)
    elif isinstance(listed, list):
        found = [_read_special_token(entry, id_) for id_, entry in enumerate(listed)]
    else:
        raise CheckpointError(f"special_tokens must be a list, got {str(listed)[:40]!r}")
    if len(found) > num_special:
        raise CheckpointError(
            f"special_tokens are {len(found)}, more than config.default_num_special_tokens={num_special}"
        )
    found += [f"<SPECIAL_{id_}>" for id_ in range(len(found), num_special)]
    if len(set(found)) < len(found):
        raise CheckpointError("special_tokens has a token twice")
    return tuple(found)


def _read_special_token(entry: object, id_: int) -> str:
    text = entry.get("token_str") if isinstance(entry, Mapping) else None
    if not isinstance(entry, Mapping) or not isinstance(text, str) or not text or entry.get("rank") != id_:
        raise CheckpointError(f"special_tokens must be objects with token_str and rank {id_}, got {str(entry)[:60]!r}")
    return text


def _read_ranks(vocab: object, size: int) -> dict[str, int]:
    """Return the first `size` tokens. The first 256 are the bytes in their order."""
    if not isinstance(vocab, list) or len(vocab) < size:
        found = len(vocab) if isinstance(vocab, list) else str(vocab)[:40]
        raise CheckpointError(f"vocab must be a list of {size} tokens or more, got {found!r}")
    ranks: dict[str, int] = {}
    for rank, token in enumerate(_list_tokens(vocab[:size])):
        spelled = "".join(map(_LETTERS.__getitem__, token))
        is_other_byte = rank < len(_LETTERS) and token != bytes([rank])
        if not token or spelled in ranks or is_other_byte:
            need = f"the byte {rank}" if is_other_byte else "a new token"
            raise CheckpointError(f"vocab: rank {rank} must be {need}, got the bytes {token[:20]!r}")
        ranks[spelled] = rank
    _check_extent(ranks)
    return ranks


def _check_extent(ranks: Mapping[str, int]) -> None:
    if len(ranks) < len(_LETTERS):
        raise CheckpointError(f"vocab has {len(ranks)} tokens, fewer than the {len(_LETTERS)} bytes")
    if (work := sum(len(token) ** 2 for token in ranks)) > MAX_WORK:
        raise CheckpointError(f"vocab: the squared lengths of its tokens add up to more than {MAX_WORK}: {work}")


def _list_tokens(vocab: list[object]) -> Iterator[bytes]:
    for rank, entry in enumerate(vocab):
        encoded = entry.get("token_bytes") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(encoded, str) or entry.get("rank") != rank:
            raise CheckpointError(f"vocab: must have token_bytes in base64 for rank {rank}, got {str(entry)[:60]!r}")
        try:
            yield base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise CheckpointError(f"vocab: token_bytes of rank {rank} are not base64: {encoded[:40]!r}") from None
