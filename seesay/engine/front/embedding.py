"""The last step of an embedding: its first dimensions, its length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError


def check_dimensions(dimensions: int, hidden_size: int) -> None:
    """Raise `RequestError` for more dimensions than the model's embeddings have."""
    if not 1 <= dimensions <= hidden_size:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"dimensions must be in [1, {hidden_size}], the size of this model's embeddings, got {dimensions}",
            "dimensions",
        )


def shape_embedding(
    pooled: npt.ArrayLike, *, dimensions: int | None = None, normalize: bool | None = None
) -> npt.NDArray[np.float32]:
    """Return the first `dimensions` of an embedding [hidden], scaled to length 1 if `normalize` is set; by default if
    it was cut, as Matryoshka representations are. A zero vector stays as it is."""
    vector = np.asarray(pooled, dtype=np.float32)
    if dimensions is not None:
        vector = vector[:dimensions]
    if normalize if normalize is not None else dimensions is not None:
        length = float(np.linalg.norm(vector.astype(np.float64)))
        vector = vector if length == 0 else (vector / length).astype(np.float32)
    return vector
