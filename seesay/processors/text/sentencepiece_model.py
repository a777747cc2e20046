"""Read SentencePiece's tokenizer.model into a fast tokenizer, without SentencePiece.

The file is one protobuf message (sentencepiece_model.proto). It comes from strangers: lengths and numbers are checked,
and it is read in one pass.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from seesay.errors import CheckpointError

_MAX_PIECES = 1 << 20
_MAX_PIECE_CHARS = 512
_MAX_CHARS = 4 << 20
"""Of all pieces: each place at which one can be cut may be a merge. Vocabularies of 256,000 pieces have 2 million."""
_UNIGRAM, _BPE = 1, 2
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4

_Fields = dict[int, int | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One entry of the vocabulary; its place is its id."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The content of a tokenizer.model."""

    pieces: tuple[Piece, ...]
    model_type: int
    byte_fallback: bool
    unk_id: int
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    def to_tokenizer(
        self, *, renamed: Mapping[int, str], adds_bos: bool, adds_eos: bool, only_first_prefix: bool
    ) -> tokenizers.Tokenizer:
        """Return a tokenizer that gives the ids of SentencePiece. Control and user-defined pieces are found first, as
        in Transformers; the text between them is tokenized piece by piece.

        renamed: pieces with another text, by id: placeholders that a publisher put to use.
        adds_bos, adds_eos: a raw text gets the first control pieces "<s>" and "</s>".
        only_first_prefix: the space before a text is not put behind special tokens, too.
        """
        texts = [renamed.get(index, piece.text) for index, piece in enumerate(self.pieces)]
        result = tokenizers.Tokenizer(self._model(texts, renamed))
        has_first_prefix = self.add_dummy_prefix and only_first_prefix
        if has_first_prefix:
            result.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
        if steps := self._list_normalizers(replaces_spaces=not has_first_prefix):
            result.normalizer = normalizers.Sequence(steps)
        tail = [decoders.Strip(content=" ", left=1, right=0)] if self.add_dummy_prefix else []
        result.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail]
        )
        known = [
            AddedToken(text, normalized=False, special=piece.kind == _CONTROL or index in renamed)
            for index, (text, piece) in enumerate(zip(texts, self.pieces, strict=True))
            if piece.kind in (_CONTROL, _USER_DEFINED) or index in renamed
        ]
        unknown = AddedToken(texts[self.unk_id], normalized=False, special=True)
        result.add_tokens([unknown, *known])
        self._frame(result, texts, adds_bos=adds_bos, adds_eos=adds_eos)
        return result

    def _list_normalizers(self, *, replaces_spaces: bool) -> list[normalizers.Normalizer]:
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(normalizers.Precompiled(self.charsmap))
        if self.remove_extra_whitespaces:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if replaces_spaces:
            steps += [normalizers.Prepend("▁")] if self.add_dummy_prefix else []
            steps.append(normalizers.Replace(" ", "▁"))
        return steps

    def _model(self, texts: list[str], renamed: Mapping[int, str]) -> models.Model:
        if self.model_type == _UNIGRAM:
            scored = [(text, piece.score) for text, piece in zip(texts, self.pieces, strict=True)]
            return models.Unigram(scored, unk_id=self.unk_id, byte_fallback=self.byte_fallback)
        ids = {text: index for index, text in enumerate(texts)}
        return models.BPE(
            vocab=ids,
            merges=self._list_merges(texts, ids, renamed),
            unk_token=texts[self.unk_id],
            fuse_unk=True,
            byte_fallback=self.byte_fallback,
        )

    def _list_merges(
        self, texts: list[str], ids: Mapping[str, int], renamed: Mapping[int, str]
    ) -> list[tuple[str, str]]:
        """Return the pairs of pieces that make a piece, those of the highest score first."""
        merges: list[tuple[float, int, int, int, tuple[str, str]]] = []
        for index, (text, piece) in enumerate(zip(texts, self.pieces, strict=True)):
            if piece.kind != _NORMAL or index in renamed:
                continue
            for cut in range(1, len(text)):
                left, right = ids.get(text[:cut]), ids.get(text[cut:])
                if left is not None and right is not None:
                    merges.append((-piece.score, index, left, right, (text[:cut], text[cut:])))
        merges.sort()
        return [pair for *_, pair in merges]

    @staticmethod
    def _frame(result: tokenizers.Tokenizer, texts: list[str], *, adds_bos: bool, adds_eos: bool) -> None:
        before = [("<s>", texts.index("<s>"))] if adds_bos and "<s>" in texts else []
        after = [("</s>", texts.index("</s>"))] if adds_eos and "</s>" in texts else []
        if before or after:
            names = [*(name for name, _ in before), "$A", *(name for name, _ in after)]
            result.post_processor = processors.TemplateProcessing(
                single=names, pair=[*names, "$B"], special_tokens=[*before, *after]
            )


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a tokenizer.model, whose size and kind were checked. Raises `CheckpointError` for a file that is damaged, or
    of another kind."""
    try:
        return _parse(memoryview(file.read_bytes()))
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{file}: not a SentencePiece model: {error}") from None


def _parse(data: memoryview) -> SentencePieceModel:
    pieces, trainer, normalizer = _read_message(data)
    model_type = trainer.get(3, _UNIGRAM)
    unk_id, charsmap = trainer.get(40, 0), normalizer.get(2, b"")
    if model_type not in (_UNIGRAM, _BPE):
        raise ValueError(f"model type {model_type!r} is not supported, only unigram (1) and BPE (2)")
    if not pieces:
        raise ValueError("it has no pieces")
    if not isinstance(unk_id, int) or not unk_id < len(pieces):
        raise ValueError(f"unk_id {unk_id!r} is not one of {len(pieces)} pieces")
    if not isinstance(charsmap, bytes):
        raise ValueError("its charsmap is damaged")
    if len({piece.text for piece in pieces}) != len(pieces):
        raise ValueError("a piece is there twice")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=int(model_type),
        byte_fallback=bool(trainer.get(35, False)),
        unk_id=unk_id,
        charsmap=charsmap,
        add_dummy_prefix=bool(normalizer.get(3, True)),
        remove_extra_whitespaces=bool(normalizer.get(4, True)),
    )


def _read_message(data: memoryview) -> tuple[list[Piece], _Fields, _Fields]:
    """Return the pieces, and the fields of the trainer's and of the normalizer's settings by their numbers."""
    pieces: list[Piece] = []
    num_chars = 0
    settings: dict[int, _Fields] = {}
    for field, value in _fields(data):
        if field == 1:
            pieces.append(_parse_piece(_message(value)))
            num_chars += len(pieces[-1].text)
            if len(pieces) > _MAX_PIECES or num_chars > _MAX_CHARS:
                raise ValueError(f"it has more than {_MAX_PIECES} pieces or {_MAX_CHARS} characters in them")
        elif field in (2, 3):
            settings[field] = {key: _plain(item) for key, item in _fields(_message(value))}
    return pieces, settings.get(2, {}), settings.get(3, {})


def _parse_piece(data: memoryview) -> Piece:
    text, score, kind = "", 0.0, _NORMAL
    for field, value in _fields(data):
        if field == 1:
            text = bytes(_message(value)).decode()
        elif field == 2 and isinstance(value, memoryview):
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    if not text or len(text) > _MAX_PIECE_CHARS or score != score:
        raise ValueError(f"a piece must have 1 to {_MAX_PIECE_CHARS} characters and a score, got {text[:40]!r}")
    return Piece(text=text, score=score, kind=kind)


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")
    return value


def _plain(value: int | memoryview) -> int | bytes:
    return value if isinstance(value, int) else bytes(value)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protobuf message: numbers as int, all others as their bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if size > len(data) - at:
            raise ValueError("it is truncated")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it is truncated")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 10 bytes")
