"""What a frontend imports before it answers."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modalities", "device_type", "is_imported"),
    [(("image",), "cpu", True), ((), "cpu", False), (("image",), "cuda", False)],
)
def test_torch_is_imported_before_the_first_picture(
    modalities: tuple[str, ...], device_type: str, is_imported: bool
) -> None:
    """In a thread of a server, the import would hold up all streams."""
    code = (
        "import sys, types; from seesay.engine.front.starting import import_for_media; had = 'torch' in sys.modules; "
        f"import_for_media(types.SimpleNamespace(modalities={modalities}), {device_type!r}); "
        "print(had, 'torch.nn.functional' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert shown.split() == ["False", str(is_imported)]
