"""The built-in checkpoint and the scenes it was trained on. Importing this package imports neither torch nor Pillow."""

from pathlib import Path

CHECKPOINT: Path = Path(__file__).parent / "checkpoint"
"""The checkpoint's folder, in the Hugging Face layout. Its model path is `seesay-demo`."""
