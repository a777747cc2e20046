"""`seesay serve api_server`: the HTTP server."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, key_options, options, server_options
from seesay.commands.command import Command
from seesay.system.liveness import LIMIT_S
from seesay.system.user_folders import find_data_folder

if TYPE_CHECKING:
    from seesay.config import MediaLimits
    from seesay.serving.settings import ServerSettings

_EXAMPLES = """\
  seesay serve api_server                                    the built-in model at http://0.0.0.0:23333
  seesay serve api_server Qwen/Qwen2.5-VL-7B-Instruct --server-port 23333 --session-len 16384
  seesay serve api_server ./my-model --model-name mine --server-name 127.0.0.1
  SEESAY_API_KEYS=key1,key2 seesay serve api_server          require an API key
  seesay serve api_server --allowed-local-media-path /data/pictures --allowed-media-domains example.com
then: curl http://localhost:23333/v1/models ; API documentation: http://localhost:23333/
"""


_PROXY_KEY_VARIABLE = "SEESAY_PROXY_KEY"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    _add_server_options(parser)
    _add_load_options(parser)
    _add_media_options(parser)
    _add_file_options(parser)
    engine_options.add_engine_options(parser)
    server_options.add_tracing(parser.add_argument_group("traces"))
    options.add_log_options(parser, default="WARNING")


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    server_options.add_address(group, 23333)
    _add_frontends(group)
    _add_replicas(group)
    _add_names(group)
    _add_keys(group)
    _add_origins(group)
    _add_request_defaults(group)


def _add_frontends(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--frontends",
        type=options.whole(1),
        default=1,
        metavar="N",
        help="processes that answer HTTP requests and prepare pictures, for one engine process; the limits below are "
        "divided among them (default: 1)",
    )
    group.add_argument(
        "--frontend-timeout",
        type=options.number,
        default=LIMIT_S,
        metavar="S",
        help=f"kill and restart one of several frontends when it hangs for so long, in seconds (default: {LIMIT_S:g})",
    )


def _add_replicas(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dp",
        type=options.whole(1),
        default=1,
        metavar="N",
        help="replicas of the model behind this address, each with an engine and an encoder on a GPU of its own, or "
        "with its share of the processor's cores; the limits below are those of each (default: 1)",
    )
    group.add_argument(
        "--devices",
        type=_read_devices,
        default=(),
        metavar="I,J,…",
        help="GPUs of the replicas, such as 0,1 (default: the first ones)",
    )
    group.add_argument(
        "--proxy-url",
        metavar="URL",
        help="a distributor (seesay serve proxy) at which the server registers once it is ready",
    )
    group.add_argument(
        "--proxy-key", metavar="KEY", help=f"an admin key of the distributor; or set {_PROXY_KEY_VARIABLE}"
    )


def _read_devices(text: str) -> tuple[int, ...]:
    return tuple(map(options.whole(0), text.split(",")))


def _add_names(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model-name",
        action="append",
        metavar="NAME",
        help="name of the model in the API (default: MODEL, for a folder its last part); may be repeated: "
        "requests may use any of the names, answers carry the first",
    )
    group.add_argument("--any-model-name", action="store_true", help="accept any model name in requests")


def _add_keys(group: argparse._ArgumentGroup) -> None:
    key_options.add_api_keys(group, "accepted API keys")
    key_options.add_admin_keys(
        group, "keys that /sleep, /wake_up and /update_weights need (default: none, these are refused)"
    )
    group.add_argument(
        "--share-caches",
        action="store_true",
        help="let all API keys share cached prefixes and pictures: for keys of one tenant (default: each has its own)",
    )
    group.add_argument(
        "--allowed-weights-path",
        metavar="FOLDER",
        help="let /update_weights load model folders inside this one (default: none)",
    )
    group.add_argument(
        "--allowed-adapter-folders",
        nargs="+",
        default=(),
        metavar="FOLDER",
        help="let /v1/load_lora_adapter load adapters from folders inside these (default: none)",
    )
    server_options.add_ssl(group)


def _add_origins(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--allow-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="origins whose browser pages may call the server; '*' is all (default: none)",
    )
    group.add_argument("--allow-credentials", action="store_true", help="let those pages send cookies")
    group.add_argument(
        "--allow-methods",
        nargs="+",
        default=["GET", "POST", "DELETE", "OPTIONS"],
        metavar="METHOD",
        help="methods those pages may use (default: GET POST DELETE OPTIONS)",
    )
    group.add_argument(
        "--allow-headers",
        nargs="+",
        default=["*"],
        metavar="HEADER",
        help="headers those pages may send (default: all)",
    )


def _add_request_defaults(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--generation-defaults",
        choices=("model", "openai"),
        default="model",
        help="defaults of temperature, top_p ... in requests: the checkpoint's or OpenAI's (default: model)",
    )
    group.add_argument(
        "--tool-call-parser",
        metavar="NAME",
        help="how the model writes calls of functions, such as hermes or llama3_json (default: by its chat template)",
    )
    group.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="how the model marks its thoughts, such as qwen3 or mistral (default: by its chat template)",
    )
    group.add_argument(
        "--unknown-fields",
        choices=("ignore", "refuse"),
        default="ignore",
        help="ignore unknown fields of requests and hints that change no answer, and name them in the header "
        "x-seesay-ignored; or refuse such requests (default: ignore)",
    )
    group.add_argument(
        "--embedding-pooling",
        choices=("mean", "last", "tokens"),
        help="the embedding of a prompt: the mean of its last hidden states, the last one, or a vector for each "
        "(default: as the model was trained, or the mean)",
    )
    group.add_argument(
        "--trust-request-chat-template",
        action="store_true",
        help="let requests bring a chat template along (it runs in the sandbox; default: such requests are refused)",
    )


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    server_options.add_limits(group, max_concurrent_requests=256)
    group.add_argument(
        "--max-sequences-per-key",
        type=options.whole(1),
        metavar="N",
        help="answers computed at the same time for one API key (or client address); its other answers wait "
        "(default: no limit, but keys take turns)",
    )
    group.add_argument(
        "--request-timeout",
        type=options.number,
        default=600.0,
        metavar="S",
        help="longest time for an answer including waiting, in seconds (default: 600)",
    )
    group.add_argument(
        "--max-live-sessions",
        type=options.whole(0),
        default=64,
        metavar="N",
        help="sessions of live video that are open at the same time; 0: none (default: 64)",
    )
    group.add_argument(
        "--live-idle-timeout",
        type=options.number,
        default=60.0,
        metavar="S",
        help="a session of live video without a frame or question for so many seconds ends (default: 60)",
    )


def _add_media_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pictures and videos in requests")
    group.add_argument(
        "--allowed-local-media-path",
        metavar="FOLDER",
        help="requests may refer to files in this folder (default: no local files)",
    )
    group.add_argument(
        "--allowed-media-domains",
        nargs="+",
        metavar="DOMAIN",
        help="fetch media from these hosts only (default: any public host)",
    )
    options.add_media_options(group, max_bytes="64 MiB", max_pixels="64 million", max_items="64")


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files and batches")
    group.add_argument(
        "--files-dir",
        metavar="FOLDER",
        help="folder of uploaded files and batches, of this server alone; 'none' turns /v1/files and /v1/batches off "
        "(default: ~/.local/share/seesay/files/PORT)",
    )
    group.add_argument(
        "--files-max-bytes",
        type=options.whole(1),
        default=10 << 30,
        metavar="N",
        help="most bytes of all files together (default: 10 GiB)",
    )
    group.add_argument(
        "--max-file-bytes",
        type=options.whole(1),
        default=200 << 20,
        metavar="N",
        help="largest file that is uploaded (default: 200 MiB)",
    )


def _find_files_dir(arguments: argparse.Namespace) -> str | None:
    """Return the folder of files. Servers on different ports have different ones, and a restarted one has its own."""
    if arguments.files_dir is not None:
        return None if arguments.files_dir.lower() == "none" else str(arguments.files_dir)
    if arguments.server_port == 0:
        return None
    try:
        return str(find_data_folder() / "files" / str(arguments.server_port))
    except RuntimeError:  # a user without a home
        return None


def make_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Return the server's settings. Raises ConfigError that names the option."""
    from seesay.serving.settings import ServerSettings

    certfile, keyfile = server_options.read_ssl_files() if arguments.ssl else (None, None)
    return ServerSettings(
        host=arguments.server_name,
        port=arguments.server_port,
        num_frontends=arguments.frontends,
        frontend_timeout_s=arguments.frontend_timeout,
        num_replicas=arguments.dp,
        devices=arguments.devices,
        proxy_url=arguments.proxy_url,
        proxy_key=arguments.proxy_key or os.environ.get(_PROXY_KEY_VARIABLE),
        model_name=arguments.model_name[0] if arguments.model_name else None,
        model_aliases=tuple(arguments.model_name[1:]) if arguments.model_name else (),
        any_model_name=arguments.any_model_name,
        api_keys=key_options.read_api_keys(arguments.api_keys),
        admin_keys=key_options.read_admin_keys(arguments.admin_keys),
        share_caches=arguments.share_caches,
        allowed_weights_path=arguments.allowed_weights_path,
        allowed_adapter_folders=tuple(arguments.allowed_adapter_folders),
        cors_origins=tuple(arguments.allow_origins),
        cors_methods=tuple(arguments.allow_methods),
        cors_headers=tuple(arguments.allow_headers),
        cors_credentials=arguments.allow_credentials,
        max_concurrent_requests=arguments.max_concurrent_requests,
        max_queue=arguments.max_queue,
        max_sequences_per_key=arguments.max_sequences_per_key,
        max_live_sessions=arguments.max_live_sessions,
        live_idle_timeout_s=arguments.live_idle_timeout,
        request_timeout_s=arguments.request_timeout,
        max_body_bytes=arguments.max_body_bytes,
        max_total_body_bytes=arguments.max_total_body_bytes,
        drain_timeout_s=arguments.drain_timeout,
        generation_defaults=arguments.generation_defaults,
        tool_call_parser=arguments.tool_call_parser,
        reasoning_parser=arguments.reasoning_parser,
        unknown_fields=arguments.unknown_fields,
        embedding_pooling=arguments.embedding_pooling,
        trust_request_chat_template=arguments.trust_request_chat_template,
        files_dir=_find_files_dir(arguments),
        files_max_bytes=arguments.files_max_bytes,
        max_file_bytes=arguments.max_file_bytes,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
        log_level=arguments.log_level,
        max_log_len=200 if arguments.max_log_len is None else arguments.max_log_len,
        media=_make_media_limits(arguments),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )


def _make_media_limits(arguments: argparse.Namespace) -> MediaLimits:
    from seesay.config import MediaLimits

    given = {
        "allowed_local_media_path": arguments.allowed_local_media_path,
        "allowed_media_domains": arguments.allowed_media_domains and tuple(arguments.allowed_media_domains),
    }
    return MediaLimits.for_server(
        **options.read_media_options(arguments),
        **{name: value for name, value in given.items() if value is not None},
    )


def _run(arguments: argparse.Namespace) -> int:
    from seesay.serving import require_packages

    require_packages()
    settings = make_settings(arguments)
    backend_config = engine_options.make_engine_config(arguments)
    template = engine_options.make_chat_template_config(arguments)
    from seesay.serving.http.listener import open_sockets, port_of, shown_host, warn_of_strangers
    from seesay.serving.serve_model import serve_model
    from seesay.system.log import set_up_logging

    set_up_logging(settings.log_level, settings.max_log_len)
    with open_sockets(settings.host, settings.port) as sockets:
        print(f"seesay: loading {arguments.model_path} ...", file=sys.stderr, flush=True)
        started = time.perf_counter()
        scheme = "https" if settings.ssl_certfile else "http"
        address = f"{scheme}://{shown_host(settings.host)}:{port_of(sockets)}"
        frontends = f" with {settings.num_frontends} frontends" if settings.num_frontends > 1 else ""

        def say_ready(device: str) -> None:
            print(
                f"seesay: ready after {time.perf_counter() - started:.1f} s on {device}; "
                f"serving {address}{frontends} (Ctrl-C finishes running answers and exits)",
                file=sys.stderr,
                flush=True,
            )
            if not settings.api_keys:
                warn_of_strangers(settings.host, "the API", key_options.ADVICE)

        serve_model(
            arguments.model_path,
            settings,
            sockets=sockets,
            on_ready=say_ready,
            backend_config=backend_config,
            vision_config=engine_options.make_vision_config(arguments),
            chat_template_config=template,
        )
    return 0


COMMAND = Command(
    name="api_server",
    summary="serve the OpenAI and Anthropic APIs over HTTP",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL]",
    examples=_EXAMPLES,
)
