"""Loads a model and serves it: in this process, or with `num_frontends` above 1 in processes that this one starts."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from seesay.config import ChatTemplateConfig, EngineConfig, TurbomindEngineConfig, VisionConfig
from seesay.config.plain import as_plain
from seesay.errors import ConfigError
from seesay.serving import require_packages
from seesay.serving.settings import ServerSettings


def serve_model(
    model_path: str | os.PathLike[str],
    settings: ServerSettings,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[str], None],
    backend_config: EngineConfig | TurbomindEngineConfig,
    vision_config: VisionConfig,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
) -> None:
    """Serve on `sockets` until SIGTERM or SIGINT, then drain and return. `on_ready` is called with the name of the
    engine's device once the server listens.

    Raises `CheckpointError` and `ConfigError`, and `MissingExtraError` without the packages of a server.
    """
    require_packages()
    if isinstance(backend_config, TurbomindEngineConfig):
        backend_config = backend_config.to_engine_config()
    serve = _serve_with_frontends if settings.num_frontends > 1 else _serve_alone
    if settings.num_replicas > 1:
        serve = _serve_replicas
    with contextlib.ExitStack() as stack:
        registration = None
        if settings.proxy_url is not None:
            from seesay.serving.registration import Registration

            registration = stack.enter_context(Registration(settings, sockets))

        def say_ready(device: str) -> None:
            on_ready(device)
            if registration is not None:
                registration.start()

        serve(
            model_path,
            settings,
            sockets=sockets,
            on_ready=say_ready,
            backend_config=backend_config,
            vision_config=vision_config,
            chat_template_config=chat_template_config,
        )


def _serve_alone(
    model_path: str | os.PathLike[str],
    settings: ServerSettings,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[str], None],
    backend_config: EngineConfig,
    vision_config: VisionConfig,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None,
) -> None:
    from seesay.engine.front.engine import AsyncEngine

    with AsyncEngine(
        model_path,
        backend_config=backend_config,
        vision_config=vision_config,
        chat_template_config=chat_template_config,
        media_limits=settings.media,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        while_loading=lambda: import_module("seesay.serving.server"),
    ) as engine:
        from seesay.serving.server import run_server

        device = engine.core.facts.device
        run_server(engine, settings, sockets=sockets, on_ready=lambda: on_ready(device))


def _serve_replicas(
    model_path: str | os.PathLike[str],
    settings: ServerSettings,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[str], None],
    backend_config: EngineConfig,
    vision_config: VisionConfig,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None,
) -> None:
    from seesay.serving.replicas import divide_devices, replica_settings, serve_replicas
    from seesay.templates import as_portable

    environments = divide_devices(settings, backend_config, vision_config)
    orders = {
        "model_path": os.fspath(model_path),
        "settings": as_plain("settings", replica_settings(settings)),
        "backend_config": as_plain("backend_config", backend_config),
        "vision_config": as_plain("vision_config", vision_config),
        "chat_template_config": as_plain("chat_template_config", as_portable(chat_template_config)),
    }
    device = f"{len(environments)} replicas"
    serve_replicas(orders, settings, environments, sockets=sockets, on_ready=lambda: on_ready(device))


def _serve_with_frontends(
    model_path: str | os.PathLike[str],
    settings: ServerSettings,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[str], None],
    backend_config: EngineConfig,
    vision_config: VisionConfig,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None,
) -> None:
    from seesay.serving.frontends.limits import divide_limits

    if backend_config.engine_process is False:
        raise ConfigError("--frontends above 1 needs an engine process: do not give --no-engine-process")
    divided = divide_limits(settings)
    try:
        from seesay.serving.frontends.state_messages import Start
        from seesay.serving.frontends.supervisor import Supervisor
    except ImportError as error:
        raise ConfigError(f"--frontends above 1 needs the packages msgspec and pyzmq ({error})") from error
    from seesay.checkpoint import resolve_checkpoint
    from seesay.templates import as_portable

    folder = resolve_checkpoint(
        model_path,
        revision=backend_config.revision,
        download_dir=backend_config.download_dir,
        with_code=backend_config.trust_remote_code,
    )
    start = Start(
        index=0,
        num_frontends=settings.num_frontends,
        model_path=os.fspath(model_path),
        engine_address="",
        settings=as_plain("settings", divided),
        backend_config=as_plain("backend_config", backend_config),
        vision_config=as_plain("vision_config", vision_config),
        chat_template_config=as_plain("chat_template_config", as_portable(chat_template_config)),
        created=int(time.time()),
    )
    supervisor = Supervisor(
        start,
        sockets,
        max_responses=settings.max_stored_responses,
        drain_timeout_s=settings.drain_timeout_s,
        hang_limit_s=settings.frontend_timeout_s,
        on_ready=on_ready,
    )
    local = replace(backend_config, download_dir=None, revision=None)  # the folder is what these lead to
    supervisor.run(folder, as_plain("backend_config", local), start.vision_config, backend_config.step_timeout_s)
