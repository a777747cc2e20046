"""The last step of an embedding: its first dimensions, its length; and how near two of them are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError

MAX_NUMBERS = 1 << 26
"""Most numbers of the vectors of one prompt."""


def check_dimensions(dimensions: int, size: int) -> None:
    """Raise `RequestError` for more dimensions than the model's embeddings have."""
    if not 1 <= dimensions <= size:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"dimensions must be in [1, {size}], the size of this model's embeddings, got {dimensions}",
            "dimensions",
        )


def check_vectors(num_tokens: int, size: int) -> None:
    """Raise `RequestError` for a prompt whose vectors would take too much memory."""
    if num_tokens * size > MAX_NUMBERS:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"pooling='tokens' makes {size} numbers for each of the {num_tokens} tokens of the prompt; at most "
            f"{MAX_NUMBERS // size} tokens are taken: shorten it, or embed its parts",
            "messages",
        )


def choose_scaling(asked: bool | None, by_default: bool) -> bool | None:
    """Return whether embeddings are scaled to length 1: as asked, or as the model's folder says (`by_default`); None:
    as `shape_embedding` does by default."""
    return True if asked is None and by_default else asked


def shape_embedding(
    pooled: npt.ArrayLike, *, dimensions: int | None = None, normalize: bool | None = None
) -> npt.NDArray[np.float32]:
    """Return the first `dimensions` of an embedding [hidden], or of each vector [n, size], scaled to length 1 if
    `normalize` is set. By default those of several vectors are, as late interaction compares them, and those that were
    cut, as Matryoshka representations are. A zero vector stays as it is."""
    vectors = np.asarray(pooled, dtype=np.float32)
    if dimensions is not None:
        vectors = vectors[..., :dimensions]
    if normalize if normalize is not None else dimensions is not None or vectors.ndim == 2:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
        vectors = (vectors / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)
    return vectors


def compare(query: npt.NDArray[np.float32], document: npt.NDArray[np.float32]) -> float:
    """Return how near two embeddings are: the product of two vectors, or for several of each the sum over those of the
    query of the greatest product with one of the document (MaxSim; Khattab and Zaharia 2020, equation 3)."""
    products = query @ document.T
    return float(products if products.ndim == 0 else products.max(axis=1).sum(dtype=np.float64))
