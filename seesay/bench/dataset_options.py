"""Which requests are measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seesay.errors import ConfigError

NAMES = ("random", "random-image", "sharegpt", "visionarena", "custom")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Which requests are measured. Raises `ConfigError` for a dataset whose file is missing, or that takes none.

    input_len, output_len, range_ratio: of random texts: their words and tokens of answer, drawn between `range_ratio`
        times the length and the length. prefix_len: the words before these that all random texts begin with.
    fixed_output_len: the tokens of each answer, whatever the dataset says.
    image_size: width and height of random pictures, `num_images` of them in a request.
    image_folder: where the pictures of records are. seed: of what is drawn.
    """

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 1000
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 1.0
    prefix_len: int = 0
    fixed_output_len: int | None = None
    image_size: tuple[int, int] = (1024, 1024)
    num_images: int = 1
    image_folder: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name.startswith("random"):
            if self.path is not None:
                raise ConfigError(f"--dataset-name {self.name} draws its requests and reads no file, got {self.path}")
        elif self.path is None:
            raise ConfigError(f"--dataset-path is required for the dataset {self.name!r}")
