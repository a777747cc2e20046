"""A low-level engine: models by name, requests by handle, results from a queue. docs/low_level_engine.md maps
DashInfer's names to these.

    from seesay.low_level import Engine, GenerationConfigBuilder, RuntimeConfigBuilder

    engine = Engine()
    engine.install_model(RuntimeConfigBuilder().model_name("demo").model_dir("seesay-demo").build())
    engine.start_model("demo")
    handle, queue = engine.start_request_text("demo", ("describe this image", picture))
    while (elements := queue.get()) is not None:
        print(elements.ids_from_generate)
    engine.release_request("demo", handle)

It is a thin layer over `AsyncEngine`, imported with torch only when a model starts.
"""

from seesay.low_level.engine import Engine, RequestHandle, StartedRequest
from seesay.low_level.model import ModelState
from seesay.low_level.request_config import GenerationConfigBuilder, RequestConfig
from seesay.low_level.result_queue import GeneratedElements, GenerateRequestStatus, ResultQueue
from seesay.low_level.runtime_config import CacheMode, RuntimeConfig, RuntimeConfigBuilder, TargetDevice

__all__ = [
    "CacheMode",
    "Engine",
    "GenerateRequestStatus",
    "GeneratedElements",
    "GenerationConfigBuilder",
    "ModelState",
    "RequestConfig",
    "RequestHandle",
    "ResultQueue",
    "RuntimeConfig",
    "RuntimeConfigBuilder",
    "StartedRequest",
    "TargetDevice",
]
