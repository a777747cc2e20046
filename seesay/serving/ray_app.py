"""A server's routes as a Ray Serve application: an engine per replica, and as many replicas as the load asks for.

Needs the extra `ray`. `build_app` is for `serve.run`, and as an application builder for `serve run` and config files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from seesay.config import EngineConfig, MediaLimits, VisionConfig
from seesay.config.checks import check_types
from seesay.errors import ConfigError, MissingExtraError
from seesay.serving.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application
    from ray.serve.config import AutoscalingContext

Options = Mapping[str, object]
_KV_USE = "kv_use"
_MOST_REQUESTS = 1024


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How many replicas there are: as many as it takes for each to have `target_requests` that run or wait, and for the
    sequences of each to hold `target_kv_use` of its KV cache. upscale_delay_s, downscale_delay_s: for how long that
    must be another number."""

    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: float = 64.0
    target_kv_use: float = 0.8
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0

    def __post_init__(self) -> None:
        check_types(self)
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ConfigError(
                "scaling: min_replicas and max_replicas must be at least 1, and max_replicas not the smaller one, "
                f"got {self.min_replicas} and {self.max_replicas}"
            )
        if self.target_requests <= 0 or not 0 < self.target_kv_use <= 1:
            raise ConfigError("scaling: target_requests must be above 0, and target_kv_use in (0, 1]")


class ScalingPolicy:
    """What Ray Serve's controller asks how many replicas there shall be."""

    def __init__(self, target_requests: float, target_kv_use: float) -> None:
        self._target_requests, self._target_kv_use = target_requests, target_kv_use

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, object]]:
        """Return the number of replicas, and nothing to remember."""
        kv_use = sum((context.aggregated_metrics or {}).get(_KV_USE, {}).values())
        wanted = max(context.total_num_requests / self._target_requests, kv_use / self._target_kv_use)
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(least, min(most, math.ceil(wanted))), {}


class Replica:
    """A replica: an engine, and the routes of a server over it."""

    def __init__(self, model_path: str, options: Mapping[str, Options]) -> None:
        from seesay.engine.front.engine import AsyncEngine

        configs = _Configs.read(options)
        self._settings = configs.server
        self._engine = AsyncEngine(
            model_path,
            backend_config=configs.engine,
            vision_config=configs.vision,
            media_limits=configs.server.media,
            tool_call_parser=configs.server.tool_call_parser,
            reasoning_parser=configs.server.reasoning_parser,
        )

    def __serve_build_asgi_app__(self) -> FastAPI:  # Ray Serve calls it
        from seesay.serving.app import create_app

        return create_app(self._engine, self._settings)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `ScalingPolicy` needs to know of this replica."""
        stats = self._engine.stats()
        return {_KV_USE: stats.num_used_kv_blocks / max(1, stats.num_kv_blocks)}

    async def check_health(self) -> None:
        """Raise where the engine computes nothing any more: Ray Serve then replaces this replica."""
        if (fault := self._engine.fault) is not None:
            raise RuntimeError(fault.reason)

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()


def build_app(options: Mapping[str, Any]) -> Application:
    """Return the application for `serve.run`. Raises `ConfigError` for options that do not exist or do not fit, and
    `MissingExtraError` without Ray.

    Options: `model_path`; `engine`, `vision`, `media`, `server` and `scaling`, with fields of `EngineConfig`,
    `VisionConfig`, `MediaLimits`, `ServerSettings` (but for those of the listener and of its processes) and `Scaling`;
    `actor`, with Ray's options of a replica's actor, by default `num_gpus` or, on the CPU, `num_cpus` of `tp`.
    """
    try:
        from ray import serve
        from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
    except ImportError:
        raise MissingExtraError("an application of Ray Serve", package="ray", extra="ray") from None
    parts = {part.name: dict(options.get(part.name, {})) for part in fields(_Configs)}
    if unknown := sorted(set(options) - {"model_path", "actor", *parts}):
        raise ConfigError(f"ray_app: there is no option {unknown[0]!r}")
    configs = _Configs.read(parts)
    scaling, engine = configs.scaling, configs.engine
    resource = "num_cpus" if engine.device_type == "cpu" else "num_gpus"
    deployment = serve.deployment(
        name="seesay",
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=scaling.target_requests,
            upscale_delay_s=scaling.upscale_delay_s,
            downscale_delay_s=scaling.downscale_delay_s,
            policy=AutoscalingPolicy(
                policy_function=f"{__name__}:{ScalingPolicy.__name__}",
                policy_kwargs={
                    "target_requests": scaling.target_requests,
                    "target_kv_use": scaling.target_kv_use,
                },
            ),
        ),
        max_ongoing_requests=_MOST_REQUESTS,  # the replica itself refuses, by its settings
        ray_actor_options=options.get("actor", {resource: engine.num_ranks}),
        graceful_shutdown_timeout_s=configs.server.drain_timeout_s,
    )(serve.ingress()(Replica))
    return deployment.bind(str(options.get("model_path", "seesay-demo")), parts)


@dataclass(frozen=True, kw_only=True)
class _Configs:
    """The configurations of a replica, and of how many there are."""

    engine: EngineConfig
    vision: VisionConfig
    media: MediaLimits
    server: ServerSettings
    scaling: Scaling

    @classmethod
    def read(cls, options: Mapping[str, Options]) -> _Configs:
        """Return the configurations of options by part. Raises `ConfigError`."""
        if refused := sorted(_OF_LISTENER & set(options["server"])):
            raise ConfigError(f"ray_app: server.{refused[0]} is not for applications of Ray Serve")
        try:
            media: Any = MediaLimits.for_server(**options["media"])
            return cls(
                engine=EngineConfig(**options["engine"]),  # type: ignore[arg-type]
                vision=VisionConfig(**options["vision"]),  # type: ignore[arg-type]
                media=media,
                server=ServerSettings(**options["server"], media=media),  # type: ignore[arg-type]
                scaling=Scaling(**options["scaling"]),  # type: ignore[arg-type]
            )
        except TypeError as error:  # which names the class and the field
            raise ConfigError(f"ray_app: {error}") from None


_OF_LISTENER = frozenset(
    {
        "host", "port", "num_frontends", "num_replicas", "devices", "proxy_url", "proxy_key", "files_dir", "media",
        "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password",
    }
)  # fmt: skip
"""Settings of what Ray Serve does itself, and of files, which replicas do not share."""
