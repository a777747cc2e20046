"""Embeddings of prompts, without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.engine.front.embedding import check_dimensions, shape_embedding
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import ConfigError, RequestError
from seesay.offline.call import Call

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.values import GenerationRequest, Pooling


def embed_prompts(
    engine: AsyncEngine,
    prompts: object,
    *,
    pooling: Pooling | None,
    dimensions: int | None,
    normalize: bool | None,
    do_preprocess: bool,
    arguments: Mapping[str, object],
) -> Any:
    """Return the embedding of a prompt, or of each of a list of prompts: see `Pipeline.embed`."""
    _check_options(pooling, dimensions, normalize)
    pooling = pooling or engine.pooling
    if dimensions is not None:
        check_dimensions(dimensions, engine.embedding_size(pooling))
    requests, is_list = Call.parse(prompts, None, do_preprocess, None, arguments, "embed")
    found = _embed(engine, [_pooled(request, pooling) for request in requests])
    vectors = [shape_embedding(vector, dimensions=dimensions, normalize=normalize) for vector in found]
    if not is_list:
        return vectors[0]
    if pooling == "tokens":
        return vectors
    return np.stack(vectors) if vectors else np.empty((0, 0), np.float32)


def _check_options(pooling: object, dimensions: object, normalize: object) -> None:
    if pooling not in (None, "mean", "last", "tokens"):
        raise ConfigError(f"pooling must be 'mean', 'last' or 'tokens', got {pooling!r}")
    if normalize is not None and not isinstance(normalize, bool):
        raise ConfigError(f"normalize must be True, False or None, got {normalize!r}")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int)):
        raise ConfigError(f"dimensions must be a positive integer, got {dimensions!r}")


def _pooled(request: GenerationRequest | RequestError, pooling: Pooling) -> GenerationRequest:
    if isinstance(request, RequestError):
        raise request
    return replace(request, pooling=pooling)


def _embed(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Any]:
    found: list[object] = [None] * len(requests)
    with closing(RequestBatch(engine, requests, streams=False).deltas()) as deltas:
        for index, delta in deltas:
            if delta.error is not None:
                raise delta.error
            if delta.finish_reason is not None:
                found[index] = delta.pooled
    return found
