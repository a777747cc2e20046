"""Embeddings of prompts, without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.engine.front.embedding import check_dimensions, choose_scaling, shape_embedding
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import ConfigError, RequestError
from seesay.offline.call import Call

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.values import GenerationRequest, Pooling
    from seesay.vl.embedding_prompts import EmbeddingPrompt


def embed_prompts(
    engine: AsyncEngine,
    prompts: object,
    *,
    pooling: Pooling | None,
    dimensions: int | None,
    normalize: bool | None,
    instruction: str | None,
    do_preprocess: bool | None,
    arguments: Mapping[str, object],
) -> Any:
    """Return the embedding of a prompt, or of each of a list of prompts: see `Pipeline.embed`."""
    _check_options(pooling, dimensions, normalize)
    own = _find_prompt(engine, instruction, do_preprocess)
    pooling = pooling or engine.pooling
    if dimensions is not None:
        check_dimensions(dimensions, engine.embedding_size(pooling))
    requests, is_list = Call.parse(prompts, None, bool(do_preprocess or own), None, arguments, "embed")
    found = _embed(engine, [_as_pooled(request, pooling, own, instruction) for request in requests])
    scaling = choose_scaling(normalize, engine.normalizes_embeddings)
    vectors = [shape_embedding(vector, dimensions=dimensions, normalize=scaling) for vector in found]
    if not is_list:
        return vectors[0]
    if pooling == "tokens":
        return vectors
    return np.stack(vectors) if vectors else np.empty((0, 0), np.float32)


def _find_prompt(engine: AsyncEngine, instruction: str | None, do_preprocess: bool | None) -> EmbeddingPrompt | None:
    """Return the model's own prompt, where raw text is not asked for. Raises `ConfigError` for an instruction that no
    prompt takes."""
    own = None if do_preprocess is False else engine.embedding_prompt
    if instruction is not None and not isinstance(instruction, str):
        raise ConfigError(f"instruction must be a text or None, got {instruction!r:.80}")
    if instruction is not None and own is None:
        why = "raw text has none" if engine.embedding_prompt else "this model has no prompt of its own for embeddings"
        raise ConfigError(f"instruction={instruction!r:.80} is not supported: {why}; write it into the prompt")
    return own


def _check_options(pooling: object, dimensions: object, normalize: object) -> None:
    if pooling not in (None, "mean", "last", "tokens"):
        raise ConfigError(f"pooling must be 'mean', 'last' or 'tokens', got {pooling!r}")
    if normalize is not None and not isinstance(normalize, bool):
        raise ConfigError(f"normalize must be True, False or None, got {normalize!r}")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int)):
        raise ConfigError(f"dimensions must be a positive integer, got {dimensions!r}")


def _as_pooled(
    request: GenerationRequest | RequestError, pooling: Pooling, own: EmbeddingPrompt | None, instruction: str | None
) -> GenerationRequest:
    if isinstance(request, RequestError):
        raise request
    pooled = replace(request, pooling=pooling)
    return pooled if own is None else own.fill(pooled, instruction)


def _embed(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Any]:
    found: list[object] = [None] * len(requests)
    with closing(RequestBatch(engine, requests, streams=False).deltas()) as deltas:
        for index, delta in deltas:
            if delta.error is not None:
                raise delta.error
            if delta.finish_reason is not None:
                found[index] = delta.pooled
    return found
