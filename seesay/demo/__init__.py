"""The built-in checkpoint and the scenes it was trained on. Importing this loads neither torch nor Pillow."""

from pathlib import Path

CHECKPOINT: Path = Path(__file__).parent / "checkpoint"
"""The checkpoint's folder, in the layout of a Hugging Face model; as a model path its name is `seesay-demo`."""
