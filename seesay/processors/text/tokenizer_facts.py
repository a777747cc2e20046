"""Facts about a checkpoint's tokenizer: read from Transformers' object, or cached by an earlier start.

Transformers decides how the files of a tokenizer are to be understood; importing it takes a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from seesay.checkpoint import check_tokenizer_files
from seesay.checkpoint.config_cache import keep, make_key, read_cached
from seesay.checkpoint.tekken_file import FILE as TEKKEN_FILE
from seesay.errors import CheckpointError
from seesay.processors.text import tekken_folder, tiktoken_folder
from seesay.processors.text.sentencepiece_folder import FILE, MISTRAL_FILES, load_sentencepiece
from seesay.processors.text.tokenizer_trial import check_growth, try_tokenizer

_CONVERTED: Mapping[str, Callable[[Path], object]] = {
    TEKKEN_FILE: tekken_folder.load_tekken,
    **{name: partial(load_sentencepiece, file=name) for name in (FILE, *MISTRAL_FILES)},
    tiktoken_folder.FILE: tiktoken_folder.load_tiktoken,
    tiktoken_folder.KIMI_FILE: tiktoken_folder.load_kimi,
}
"""The files of a tokenizer that are converted here, where there is no tokenizer.json."""
_TOKENIZER_FILES = ("tokenizer.json", *_CONVERTED, "vocab.json", "vocab.txt", "tokenizer_config.json")
_READ_BY_TRANSFORMERS = (
    *_TOKENIZER_FILES, "added_tokens.json", "special_tokens_map.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "config.json", "processor_config.json",
)  # fmt: skip
_KEPT = "tokenizer-3"
"""The number counts the fields of `TokenizerFacts` and how they are read, also from converted files: raise it with a
change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """`backend` is a serialized `tokenizers.Tokenizer`, which neither truncates nor pads. `named_tokens` are spellings
    by names such as 'bos_token', and by those that the model gives to tokens of its own."""

    backend: str
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: str | dict[str, str] | None
    named_tokens: Mapping[str, str]
    has_byte_level_decoder: bool

    @classmethod
    def of(cls, hf: Any) -> Self:
        """Read a tokenizer object of Transformers. Raises `CheckpointError` for one without a fast backend."""
        if not getattr(hf, "is_fast", False):
            raise CheckpointError(
                f"the tokenizer class {type(hf).__name__} has no fast backend, which media offsets require: "
                "save it with a tokenizer.json"
            )
        state = json.loads(hf.backend_tokenizer.to_str())
        check_growth(state)
        state["truncation"] = state["padding"] = None  # prompts are never truncated or padded
        return cls(
            backend=json.dumps(state),
            bos_token_id=hf.bos_token_id,
            eos_token_id=hf.eos_token_id,
            chat_template=hf.chat_template,
            named_tokens=dict(hf.special_tokens_map),
            has_byte_level_decoder=_is_byte_level(state.get("decoder") or {}),
        )


def load_facts(path: Path, *, trust_remote_code: bool) -> TokenizerFacts:
    """Return the facts of the tokenizer in a folder. Those of a tokenizer.json, or of a file that is converted here,
    are kept for the next time.

    Raises `CheckpointError` if there is no tokenizer, and whatever Transformers raises for a damaged one.
    """
    names = _check_files(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", *_CONVERTED)):
        # Code of the checkpoint may read other files.
        return TokenizerFacts.of(load_hf(path, trust_remote_code=trust_remote_code))
    key = _make_key(path, names)
    kept = read_cached(key)
    if kept is not None:
        try:
            return TokenizerFacts(**kept)
        except TypeError:  # a damaged file
            pass
    if (path / "tokenizer.json").is_file():
        try_tokenizer(path / "tokenizer.json")
    facts = TokenizerFacts.of(load_hf(path, trust_remote_code=trust_remote_code))
    if _make_key(path, names) == key:  # the files were not replaced meanwhile
        keep(key, asdict(facts))
    return facts


def load_hf(path: Path, *, trust_remote_code: bool) -> Any:
    """Return Transformers' object for the tokenizer in a folder: its tokenizer.json unchanged, else our conversion of
    Mistral's tekken.json, SentencePiece's tokenizer.model, Qwen's qwen.tiktoken or Kimi's tiktoken.model, else
    Transformers' conversion of another file."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (path / "tokenizer.json").is_file():
        # The classes of specific models use only the vocabulary in the file, with their own pre-tokenizer.
        return PreTrainedTokenizerFast.from_pretrained(str(path))
    for name, convert in _CONVERTED.items():
        if (path / name).is_file():
            return convert(path)
    missing = CheckpointError(
        f"{path}: tokenizer.json is missing, and no other tokenizer file here can be read: download tokenizer.json"
    )
    try:
        hf = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except (OSError, TypeError, ValueError) as error:  # Transformers lists all that it tried
        raise missing from error
    if len(hf.get_vocab()) <= len(hf.get_added_vocab()):  # some classes make an empty one where there are no files
        raise missing
    return hf


def _check_files(path: Path) -> Sequence[str]:
    """Return the names of the files that Transformers may read, after checking their kind and size."""
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(f"{path}: no tokenizer: there is no tokenizer.json and no other tokenizer file")
    extra_templates = [f"additional_chat_templates/{p.name}" for p in path.glob("additional_chat_templates/*")]
    names = (*_READ_BY_TRANSFORMERS, *sorted(extra_templates))
    check_tokenizer_files(path, names)
    return names


def _make_key(path: Path, names: Sequence[str]) -> str:
    contents: list[bytes] = []
    for name in names:
        if (path / name).is_file():
            contents += name.encode(), (path / name).read_bytes()
    return make_key(_KEPT, ["transformers", "tokenizers"], contents)


def _is_byte_level(decoder: dict[str, Any]) -> bool:
    """Return whether decoding uses only byte-level BPE's alphabet."""
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders") or []
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"
