"""The base of families for late interaction (ColPali, arXiv 2407.01449): a vector for each token of a question, or of a
page. They make no text. A prompt is the picture of one page, or a text, which is a question; each gets the words with
which the model was trained."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Modality, RenderedPrompt
from seesay.vl.backbone import Backbone
from seesay.vl.family import Family
from seesay.vl.weight_map import WeightMap

_MAX_VECTOR = 1 << 16
_NUM_AUGMENTING = 10
"""Padding tokens behind a question, which the model was trained to use."""


def nest_weights(weights: WeightMap) -> WeightMap:
    """Return the names of tensors of a model that is an attribute, `vlm`, of one with a head for embeddings."""

    def nest(names: dict[str, str]) -> dict[str, str]:
        return {f"vlm.{name}": own for name, own in names.items()}

    return replace(
        weights,
        decoder={**nest(dict(weights.decoder)), "embedding_proj_layer.": "embedding_head."},
        tower=nest(dict(weights.tower)),
        ignored=tuple(f"vlm.{name}" for name in weights.ignored),
    )


class LateInteractionFamily(Family):
    """Mixed into the family of the model that it is made of, before it.

    default_prefixes: of a page's prompt, whose marker may be among it, and of a question, where the processor's file
    does not have them. page_ending: behind a page's prompt.
    """

    writes_text = False
    pooling = "tokens"
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    default_prefixes: ClassVar[tuple[str, str]]
    page_ending: ClassVar[str] = ""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        pad_token = tokenizer.template_variables.get("pad_token")
        if not isinstance(pad_token, str):
            raise CheckpointError(f"{checkpoint.path}: the tokenizer has no padding token, which ends questions")
        page, query = self._read_prefixes()
        self._query_prefix = self.begin_query(query)
        self._page = self.place_page(page) + self.page_ending
        if self._page.count(self.markers[Modality.IMAGE]) != 1:
            raise CheckpointError(
                f"{checkpoint.path / 'processor_config.json'}: visual_prompt_prefix must have the marker of a picture, "
                f"{self.markers[Modality.IMAGE]}, once, got {page[:80]!r}"
            )
        self._query_suffix = _NUM_AUGMENTING * pad_token + "\n"
        self._vector_size = self._read_size()

    def _read_prefixes(self) -> list[str]:
        """Return what stands before a page and before a question, as the processor's file has it."""
        own = self.checkpoint.read_json("processor_config.json") or {}
        prefixes = [
            own.get(name) or default
            for name, default in zip(("visual_prompt_prefix", "query_prefix"), self.default_prefixes)
        ]
        if not all(isinstance(prefix, str) for prefix in prefixes):
            raise CheckpointError(
                f"{self.checkpoint.path / 'processor_config.json'}: visual_prompt_prefix and query_prefix must be texts"
            )
        return prefixes

    def _read_size(self) -> int:
        size = self.checkpoint.model_config.embedding_dim
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MAX_VECTOR:
            raise CheckpointError(f"{self.checkpoint.path}: embedding_dim must be in [1, {_MAX_VECTOR}], got {size!r}")
        return size

    def place_page(self, prefix: str) -> str:
        """Return the prompt of a page with its marker, of the processor's prefix."""
        return prefix

    def begin_query(self, prefix: str) -> str:
        """Return what stands before a question, of the processor's prefix."""
        return prefix

    def backbone(self) -> Backbone:
        return replace(super().backbone(), projection_size=self._vector_size, tie_word_embeddings=True)

    def complete(self, rendered: RenderedPrompt, *, is_open: bool = False) -> RenderedPrompt:
        del is_open  # there are no answers
        if not rendered.markers:
            shift = len(self._query_prefix)
            return replace(
                rendered,
                text=f"{self._query_prefix}{rendered.text}{self._query_suffix}",
                literals=tuple((start + shift, stop + shift) for start, stop in rendered.literals),
                takes_prefix=False,
            )
        (start, stop), *others = rendered.markers
        if others or (rendered.text[:start] + rendered.text[stop:]).strip():
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "this model embeds the picture of one page alone, or a text alone: give each a prompt of its own",
                "messages",
            )
        marker = self.markers[Modality.IMAGE]
        at = self._page.index(marker)
        return replace(rendered, text=self._page, markers=((at, at + len(marker)),), literals=(), takes_prefix=False)
