"""Embeddings of prompts, without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from seesay.engine.front.embedding import check_dimensions, shape_embedding
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import ConfigError, RequestError
from seesay.offline.call import Call

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.values import GenerationRequest


def embed_prompts(
    engine: AsyncEngine,
    prompts: object,
    *,
    pooling: Literal["mean", "last"],
    dimensions: int | None,
    normalize: bool | None,
    do_preprocess: bool,
    arguments: Mapping[str, object],
) -> npt.NDArray[np.float32]:
    """Return the embedding of a prompt, or of each of a list of prompts: see `Pipeline.embed`."""
    _check_options(pooling, dimensions, normalize)
    if dimensions is not None:
        check_dimensions(dimensions, engine.hidden_size)
    requests, is_list = Call.parse(prompts, None, do_preprocess, None, arguments, "embed")
    found = _embed(engine, [_pooled(request, pooling) for request in requests])
    vectors = [shape_embedding(vector, dimensions=dimensions, normalize=normalize) for vector in found]
    if not vectors:
        return np.empty((0, 0), np.float32)
    return np.stack(vectors) if is_list else vectors[0]


def _check_options(pooling: object, dimensions: object, normalize: object) -> None:
    if pooling not in ("mean", "last"):
        raise ConfigError(f"pooling must be 'mean' or 'last', got {pooling!r}")
    if normalize is not None and not isinstance(normalize, bool):
        raise ConfigError(f"normalize must be True, False or None, got {normalize!r}")
    if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int)):
        raise ConfigError(f"dimensions must be a positive integer, got {dimensions!r}")


def _pooled(request: GenerationRequest | RequestError, pooling: Literal["mean", "last"]) -> GenerationRequest:
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
