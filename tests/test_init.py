"""What `import seesay` offers, and that it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import seesay

PUBLIC = {
    "APIClient", "AsyncEngine", "BeamSearchParams",
    "ChatTemplateConfig", "DocumentPage", "EngineConfig", "GenerationConfig", "IMAGE_TOKEN", "MediaLimits",
    "Pipeline", "PytorchEngineConfig", "Response", "Session", "SpeculativeConfig",
    "TurbomindEngineConfig", "VisionConfig", "__version__",
    "client", "errors", "lite", "load_audio", "load_document", "load_image", "load_video", "low_level", "pipeline",
    "serve",
}  # fmt: skip


def test_public_names() -> None:
    assert set(seesay.__all__) == PUBLIC
    for name in seesay.__all__:
        assert getattr(seesay, name) is not None
    assert set(seesay.__all__) <= set(dir(seesay))
    assert seesay.PytorchEngineConfig is seesay.EngineConfig
    assert seesay.IMAGE_TOKEN == "<IMAGE_TOKEN>"
    assert callable(seesay.pipeline)


def test_names_where_lmdeploy_has_them() -> None:
    from seesay.vl import load_image, load_video
    from seesay.vl.constants import IMAGE_TOKEN

    assert load_image is seesay.load_image and load_video is seesay.load_video
    assert IMAGE_TOKEN == seesay.IMAGE_TOKEN


def test_unknown_names_raise() -> None:
    assert not hasattr(seesay, "pipelines")
    assert not hasattr(seesay.vl, "load_sound")


def test_import_is_light() -> None:
    """Measured inside the new process, so that its start does not count, in time of the processor, so that others on
    the machine do not."""
    code = (
        "import time, sys; start = time.process_time(); import seesay; took = time.process_time() - start\n"
        "heavy = [m for m in ('torch', 'transformers', 'numpy', 'PIL', 'jinja2') if m in sys.modules]\n"
        "from seesay import pipeline, Pipeline, GenerationConfig, Response, Session\n"
        "seesay.lite, seesay.low_level\n"
        "heavy += [m for m in ('torch', 'transformers') if m in sys.modules]\n"
        "print(took, *heavy)"
    )
    took, *heavy = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy == []
    assert float(took) < 0.3
