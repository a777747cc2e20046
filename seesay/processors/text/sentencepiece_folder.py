"""Load the tokenizer of a folder that has SentencePiece's tokenizer.model, also under Mistral's own names, and no
tokenizer.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Tokenizer

from seesay.checkpoint.files import read_object
from seesay.errors import CheckpointError
from seesay.processors.text.sentencepiece_model import SentencePieceModel, read_sentencepiece

FILE = "tokenizer.model"
MISTRAL_FILES = tuple(f"{FILE}.{version}" for version in ("v1", "v2", "v3"))
_MISTRAL_CONFIG: Mapping[str, object] = {
    "bos_token": "<s>", "eos_token": "</s>", "legacy": False, "unk_token": "<unk>",
}  # fmt: skip
"""What the tokenizer_config.json of Mistral's models says, which stands beside the file in Transformers' layout."""

_COPIED = ("special_tokens_map.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates")
_CODE = ("auto_map", "tokenizer_class", "tokenizer_file")
"""Entries of tokenizer_config.json that name code or files which are not used here."""
_FIRST_PREFIX_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast")
"""Classes that put a space before the first text only, unless tokenizer_config.json says `legacy`."""
_MAX_ADDED = 1 << 16

_ADDED_FLAGS = {"normalized": False, "special": True, "lstrip": False, "rstrip": False, "single_word": False}
"""The flags of an added token, with their defaults."""


def load_sentencepiece(folder: Path, file: str = FILE) -> Any:
    """Return a fast tokenizer of Transformers with the ids of the folder's tokenizer.model, which is called `file`
    there, and of the tokens that its other files add. No code of the checkpoint is needed or run.

    Raises `CheckpointError` for a damaged file, and for added tokens whose ids leave a gap.
    """
    own = read_object(folder / "tokenizer_config.json")
    config = own or (_MISTRAL_CONFIG if file in MISTRAL_FILES else {})
    model = read_sentencepiece(folder / file)
    added = dict(sorted(_added_tokens(folder, config)))
    renamed = {
        index: token.content
        for index, token in added.items()
        if index < len(model.pieces) and token.content != model.pieces[index].text
    }
    tokenizer = model.to_tokenizer(
        renamed=renamed,
        adds_bos=bool(config.get("add_bos_token", True)),
        adds_eos=bool(config.get("add_eos_token", False)),
        only_first_prefix=_is_first_only(config),
    )
    _add(tokenizer, model, added, folder)
    return wrap_converted(tokenizer, folder, config)


def _is_first_only(config: Mapping[str, object]) -> bool:
    legacy = config.get("legacy")
    if legacy is None:
        return config.get("tokenizer_class") in _FIRST_PREFIX_CLASSES
    return not legacy


def _added_tokens(folder: Path, config: Mapping[str, object]) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens that files beside the model add or rename, by id."""
    yield from _read_added_tokens(folder)
    yield from _read_decoder(folder, config)


def _read_added_tokens(folder: Path) -> Iterator[tuple[int, AddedToken]]:
    for text, index in (read_object(folder / "added_tokens.json") or {}).items():
        if not isinstance(index, int) or index < 0:
            raise CheckpointError(f"{folder / 'added_tokens.json'}: {text!r} must have an id, got {index!r}")
        yield index, AddedToken(text, normalized=False, special=True)


def _read_decoder(folder: Path, config: Mapping[str, object]) -> Iterator[tuple[int, AddedToken]]:
    decoder = config.get("added_tokens_decoder") or {}
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        made = _read_added_token(token)
        if not str(key).isdecimal() or len(str(key)) > 9 or made is None:
            where = folder / "tokenizer_config.json"
            raise CheckpointError(f"{where}: added_tokens_decoder must map ids to tokens, got {str(key)[:40]!r}")
        yield int(key), made


def _read_added_token(token: object) -> AddedToken | None:
    """Return the token that an entry of added_tokens_decoder describes, a text or an object; None if it has no text."""
    flags = token if isinstance(token, dict) else {"content": token}
    content = flags.get("content")
    if not isinstance(content, str) or not content:
        return None
    return AddedToken(content, **{name: bool(flags.get(name, default)) for name, default in _ADDED_FLAGS.items()})


def _add(tokenizer: Tokenizer, model: SentencePieceModel, added: Mapping[int, AddedToken], folder: Path) -> None:
    """Add the tokens behind the model's pieces under the ids that the files say."""
    behind = {index: token for index, token in added.items() if index >= len(model.pieces)}
    if len(behind) > _MAX_ADDED:
        raise CheckpointError(f"{folder}: {len(behind)} added tokens, at most {_MAX_ADDED} are supported")
    tokenizer.add_tokens([token for index, token in added.items() if index < len(model.pieces)])
    for index, token in behind.items():
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != index:
            found = tokenizer.token_to_id(token.content)
            raise CheckpointError(f"{folder}: the added token {token.content!r} must have id {index}, it gets {found}")


def wrap_converted(tokenizer: Tokenizer, folder: Path, config: Mapping[str, object]) -> Any:
    """Return a fast tokenizer of Transformers around `tokenizer`, with the settings `config` of a tokenizer_config.json
    and the other files of the folder that say what its tokens are called."""
    from transformers import PreTrainedTokenizerFast

    with TemporaryDirectory() as made:
        _write(Path(made), folder, config, tokenizer)
        return PreTrainedTokenizerFast.from_pretrained(made)


def _write(target: Path, folder: Path, config: Mapping[str, object], tokenizer: Tokenizer) -> None:
    tokenizer.save(str(target / "tokenizer.json"))
    kept = {key: value for key, value in config.items() if key not in _CODE}
    (target / "tokenizer_config.json").write_text(json.dumps(kept), encoding="utf-8")
    for name in _COPIED:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, target / name)
        elif (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
