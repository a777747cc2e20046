"""The checkpoint's tokenizer: turns text into ids, and finds media markers and user text by character offset.

Thread-safe. Independent of chat templates and media.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.byte_alphabet import byte_alphabet
from seesay.processors.text.literals import LiteralTokenizer
from seesay.processors.text.long_text import decode_ids, encode_text, has_more_tokens
from seesay.processors.text.tokenizer_facts import TokenizerFacts, load_facts, load_hf
from seesay.values import RenderedPrompt

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A Hugging Face tokenizer with additional methods for serving.

    hf: the tokenizer object of Transformers, loaded when it is first asked for. Calling this object calls it, and
        attributes that are not defined here are looked up in it (`apply_chat_template`, `padding_side`, …).
    digest: 32 bytes over the backend.
    backend: our own copy of its `tokenizers.Tokenizer`. It never changes, so that threads can share it, whatever a user
        does with `hf`.
    """

    def __init__(self, facts: TokenizerFacts, load_hf: Callable[[], Any]) -> None:
        """`facts` are those of the object that `load_hf` returns, which is called when it is first needed."""
        self._load_hf = load_hf
        self._hf: Any = None
        self._hf_lock = threading.Lock()
        self.backend = tokenizers.Tokenizer.from_str(facts.backend)
        self.digest = hashlib.blake2b(facts.backend.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = facts.bos_token_id
        self.eos_token_id = facts.eos_token_id
        added = self.backend.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens: tuple[str, ...] = tuple(self.added_tokens[i] for i in sorted(self.special_ids))
        self.special_token_ids: dict[str, int] = {self.added_tokens[i]: i for i in sorted(self.special_ids)}
        self.chat_template = facts.chat_template
        self.named_tokens = dict(facts.named_tokens)
        self.template_variables = {
            name: self.named_tokens[name] for name in _TEMPLATE_VARIABLES if name in self.named_tokens
        }
        self.has_byte_level_decoder = facts.has_byte_level_decoder
        self._prefix_ids = self._find_prefix()
        self._bytes: dict[int, bytes] = {}  # of the tokens that `bytes_of` was asked for
        self._spelling_tokens: dict[str, bool] = {}  # of the few markers of a family
        self._literals: LiteralTokenizer | None = None
        self._literals_lock = threading.Lock()

    @classmethod
    def of(cls, hf: object) -> Tokenizer:
        """Return a tokenizer object of Transformers with these methods. Raises `CheckpointError` for one without a fast
        backend."""
        return cls(TokenizerFacts.of(hf), lambda: hf)

    @classmethod
    def wrap(cls, value: object) -> Tokenizer:
        """Return `value`, or wrap a fast tokenizer of Transformers. Raises TypeError for anything else."""
        if isinstance(value, cls):
            return value
        if not getattr(value, "is_fast", False):
            raise TypeError(
                f"tokenizer must be a Tokenizer or a fast tokenizer of Transformers, got {type(value).__name__}"
            )
        return cls.of(value)

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> Tokenizer:
        """Load the tokenizer of a checkpoint folder (`load_hf` says from which file). Raises `CheckpointError` if there
        is none or it is damaged."""
        try:
            facts = load_facts(path, trust_remote_code=trust_remote_code)
            return cls(facts, partial(load_hf, path, trust_remote_code=trust_remote_code))
        except (KeyboardInterrupt, SystemExit, GeneratorExit, CheckpointError):
            raise
        except BaseException as error:  # readers raise anything; a panic of tokenizers is not an Exception
            hint = "" if trust_remote_code else " (trust_remote_code is off)"
            raise CheckpointError(f"cannot load the tokenizer of {path}{hint}: {error}") from error

    @property
    def hf(self) -> Any:
        """The tokenizer object of Transformers."""
        with self._hf_lock:
            if self._hf is None:
                self._hf = self._load_hf()
            return self._hf

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.hf(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("hf", "_hf", "_hf_lock", "_load_hf") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.hf, name)

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token of a byte-level decoder stands for; nothing for an id outside the vocabulary."""
        data = self._bytes.get(token_id)
        if data is None:
            token: str | None = self.backend.id_to_token(token_id)
            if token is None:
                return b""
            alphabet = byte_alphabet()
            try:
                data = bytes([alphabet[char] for char in token])
            except KeyError:  # an added token with other characters is plain text
                data = token.encode()
            self._bytes[token_id] = data
        return data

    def spell_token(self, token_id: int) -> bytes:
        """Return what a token stands for in a text; nothing for a special token, or an id outside the vocabulary."""
        if token_id in self.special_ids:
            return b""
        if self.has_byte_level_decoder:
            return self.bytes_of(token_id)
        added = self.added_tokens.get(token_id)
        if added is not None:
            return added.encode()
        piece: str | None = self.backend.id_to_token(token_id)
        return b"" if piece is None else read_piece(piece)

    def spell_tokens(self, num_tokens: int) -> list[bytes]:
        """Return what each of the first tokens stands for in a text. Nothing for ids outside the vocabulary; for
        special tokens what stands in no text (a byte that is not UTF-8), so that grammars can name them by id only."""
        if self.has_byte_level_decoder:
            spell = self.bytes_of
        else:
            pieces = self.backend.get_vocab(with_added_tokens=False)
            by_id = {token_id: read_piece(piece) for piece, token_id in pieces.items()}
            by_id |= {token_id: text.encode() for token_id, text in self.added_tokens.items()}
            spell = partial(_find_bytes, by_id)
        special = {token_id: b"\xff" + self.added_tokens[token_id].encode() for token_id in self.special_ids}
        return [special.get(token_id) or spell(token_id) for token_id in range(num_tokens)]

    def token_id(self, token: str) -> int | None:
        """Return the id of the token with exactly this spelling, or None."""
        result: int | None = self.backend.token_to_id(token)
        return result

    def token_text(self, token_id: int) -> str | None:
        """Return the spelling of a token, or None for an id outside the vocabulary."""
        text: str | None = self.backend.id_to_token(int(token_id))
        return text

    def encode(self, text: str, *, add_special_tokens: bool = False, add_bos: bool | None = None) -> list[int]:
        """Return the token ids of `text`. Spellings of special tokens in it become special tokens.

        add_special_tokens: add the special tokens that the tokenizer puts around a raw text. A BOS that the text
        already
            starts with is not repeated.
        add_bos: overrides this for the BOS: False leaves it out, True adds it.
        """
        ids: list[int] = encode_text(self.backend, text, add_special_tokens=add_special_tokens).ids
        prefix = self._prefix_ids
        if add_special_tokens and prefix and (add_bos is False or self._starts_with(ids[len(prefix) :], prefix)):
            ids = ids[len(prefix) :]
        elif add_bos and not add_special_tokens:
            bos = prefix or ([] if self.bos_token_id is None else [self.bos_token_id])
            ids = ids if self._starts_with(ids, bos) else [*bos, *ids]
        return ids

    def encode_prompt(
        self, rendered: RenderedPrompt, *, is_apart: bool = False, begins_empty: bool = True
    ) -> tuple[npt.NDArray[np.int64], tuple[tuple[int, int], ...]]:
        """Return ids int64 [T] of a rendered prompt, and the (start, stop) token range of each media marker.

        Equals the tokenization of the whole text, except that `rendered.literals` never become special tokens. The ids
        begin with the tokenizer's prefix (its BOS) exactly once: it is added if the text does not spell it, and
        repetitions at the beginning are dropped; a prompt that takes no prefix is left as it is. A marker that spells
        no token of its own has an empty range; the texts around it are tokenized one by one, as LLaVA's own code does.
        Raises `RequestError` if another marker shares a token with adjacent text.

        is_apart: this holds for all markers, whatever they spell, and each of the texts begins with the prefix;
        begins_empty: one without characters, too, and not the first alone.
        """
        spans = _ascending(rendered.markers)
        ids: list[int] = []
        ranges: list[tuple[int, int]] = []
        done = first = 0
        end = (len(rendered.text), len(rendered.text))
        for index, (start, stop) in enumerate((*spans, end)):
            if index < len(spans) and not is_apart and self._spells_token(rendered.text[start:stop]):
                continue
            piece_ids, piece_ranges = self._encode_piece(rendered, (done, start), spans[first:index])
            if is_apart and rendered.takes_prefix and (begins_empty or start > done or not index):
                piece_ids = self._with_prefix(piece_ids)
            ranges += [(len(ids) + low, len(ids) + high) for low, high in piece_ranges]
            ids += piece_ids
            if index < len(spans):
                ranges.append((len(ids), len(ids)))
            done, first = stop, index + 1
        begun = ids if is_apart or not rendered.takes_prefix else self._with_prefix(ids)
        shift = len(begun) - len(ids)
        return np.asarray(begun, dtype=np.int64), tuple((start + shift, stop + shift) for start, stop in ranges)

    def _with_prefix(self, ids: list[int]) -> list[int]:
        """Return ids that begin with the tokenizer's prefix exactly once."""
        prefix, written = self._prefix_ids, 0
        while self._starts_with(ids[written : written + len(prefix)], prefix):
            written += len(prefix)
        return [*prefix, *ids[written:]]

    def _encode_piece(
        self, rendered: RenderedPrompt, piece: tuple[int, int], markers: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a piece (start, stop) of a prompt's text, and the token range of each of its `markers`."""
        begin, end = piece
        if begin == end:
            return [], []
        text = rendered.text[begin:end]
        literals = [(start - begin, stop - begin) for start, stop in rendered.literals if begin <= start < end]
        if literals:
            ids, offsets, tokens = self._literal_tokenizer().encode(text, literals)
        else:
            encoding = encode_text(self.backend, text)
            ids = encoding.ids  # each of these three attributes builds a new list
            offsets, tokens = (encoding.offsets, encoding.tokens) if markers else ([], [])
        spans = [(start - begin, stop - begin) for start, stop in markers]
        return ids, [self._find_marker(text, span, ids, offsets, tokens) for span in spans]

    def _spells_token(self, marker: str) -> bool:
        """Return whether an added token is a part of a marker."""
        if marker not in self._spelling_tokens:
            self._spelling_tokens[marker] = any(token in marker for token in self.added_tokens.values() if token)
        return self._spelling_tokens[marker]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids. Ids outside the vocabulary have no text."""
        return decode_ids(self.backend, list(map(int, ids)), skip_special_tokens=skip_special_tokens)

    def has_more_tokens(self, text: str, max_tokens: int) -> bool:
        """Return whether `text` is certain to have more than `max_tokens` tokens, in time bounded by these."""
        return has_more_tokens(self.backend, text, max_tokens)

    def _literal_tokenizer(self) -> LiteralTokenizer:
        """Build the tokenizer for literals. It is built when it is first needed; most processes never need it."""
        with self._literals_lock:
            if self._literals is None:
                self._literals = LiteralTokenizer.build(self.backend.to_str(), self.added_tokens)
            return self._literals

    def _find_prefix(self) -> list[int]:
        """Return the ids that the tokenizer puts before a raw text."""
        plain, framed = (self.backend.encode("a", add_special_tokens=add).ids for add in (False, True))
        for start in range(len(framed) - len(plain) + 1):
            if framed[start : start + len(plain)] == plain:
                return list(framed[:start])
        return []

    @staticmethod
    def _starts_with(ids: Sequence[int], prefix: Sequence[int]) -> bool:
        return bool(prefix) and list(ids[: len(prefix)]) == list(prefix)

    def _find_marker(
        self, text: str, span: tuple[int, int], ids: list[int], offsets: list[tuple[int, int]], tokens: list[str]
    ) -> tuple[int, int]:
        """Return the token range that covers exactly the characters `span`."""
        touching = _tokens_touching(offsets, span)
        if touching is None:
            raise _bad_marker(text, span)
        first, last = touching
        start, stop = offsets[first][0], offsets[last][1]
        if (start, stop) != span:
            # A marker token with lstrip / rstrip includes the whitespace around it.
            is_added = ids[first] in self.added_tokens and ids[last] in self.added_tokens
            if not is_added or text[start:stop].strip() != text[span[0] : span[1]].strip():
                raise _bad_marker(text, span)
        elif (
            ids[first] not in self.added_tokens and tokens[first][0] in "Ġ▁" and first and offsets[first - 1][1] < start
        ):
            raise _bad_marker(text, span)  # its first token includes the space before it, although its offsets do not
        return first, last + 1


def _find_bytes(by_id: Mapping[int, bytes], token_id: int) -> bytes:
    return by_id.get(token_id, b"")


def read_piece(piece: str) -> bytes:
    """Return the bytes of a token whose vocabulary writes spaces as U+2581 and bytes as <0x0A>."""
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return piece.replace("\u2581", " ").encode()


def _tokens_touching(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first and last index of the tokens that hold characters of `span`, or None."""
    # Stops never decrease, so a binary search finds the first candidate. Empty tokens hold no characters.
    low = bisect.bisect_right(offsets, span[0], key=lambda offset: offset[1])
    high = low
    while high < len(offsets) and offsets[high][0] < span[1]:
        high += 1
    touching = [i for i in range(low, high) if offsets[i][1] > offsets[i][0]]
    return (touching[0], touching[-1]) if touching else None


def _ascending(spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    assert all(start < stop for start, stop in spans), f"empty span in {spans}"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), f"spans overlap or descend: {spans}"
    return spans


def _bad_marker(text: str, span: tuple[int, int]) -> RequestError:
    around = text[max(0, span[0] - 16) : span[1] + 16]
    return RequestError(
        ErrorCode.INVALID_REQUEST,
        f"the media marker {text[span[0] : span[1]]!r} shares a token with the text beside it ({around!r}): "
        "separate them, for example with a newline",
        "messages",
    )
