"""The settings of a server: frozen, and validated when they are built. Wrong values raise `ConfigError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seesay.config import MediaLimits
from seesay.config.checks import check_types
from seesay.errors import ConfigError
from seesay.serving.tracing import read_endpoint
from seesay.system.liveness import LIMIT_S
from seesay.system.log import LEVELS
from seesay.templates.parsers.choose import check_parser_names
from seesay.values import Pooling


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Options of the HTTP server. Times are in seconds.

    host, port: the address to listen on.
    num_frontends: processes that answer HTTP requests, for one engine process. They divide max_concurrent_requests,
        max_queue, max_total_body_bytes and max_sequences_per_key among themselves. `seesay.serve` and the command take
        more than 1. frontend_timeout_s: one whose event loop has not run for so long is killed and started again.
    num_replicas: server processes behind one address, each with an engine and an encoder; the limits are those of each.
        devices: the GPUs that they take; by default the first ones, and on the CPU each has its share of the cores.
    proxy_url: a distributor (`seesay serve proxy`) at which the server registers once it is ready. proxy_key: one of
        its admin keys.
    model_name: name of the model in requests and answers; None takes the model path (for a folder, its last part).
    model_aliases: further names that requests may use; answers carry model_name. any_model_name: accept any name.
    api_keys: keys that requests may use; without keys the server is open to everyone.
    admin_keys: keys for the routes that put the engine to sleep, wake it up and replace its weights; without them these
        are refused. They are accepted by all other routes, too.
    share_caches: let keys share cached prefixes, embeddings and pictures. Without it, each key has its own, so that no
        key learns by usage or timing what another one has sent. For keys that all belong to one tenant.
    allowed_weights_path: a folder from which such a request may load weights. None: it must send them.
    allowed_adapter_folders: folders below which such a request may load adapters.
    cors_origins: origins whose browser pages may call the server ('*': all). Empty: none but the server's own.
        cors_methods, cors_headers, cors_credentials: what such pages may send.
    max_concurrent_requests: requests that run at the same time. max_queue: further requests that may wait; above that,
        requests are refused with 429.
    max_sequences_per_key: answers computed at the same time for one API key (without keys: one client address); the
        key's other answers wait. None: no such limit; keys take turns when there is not enough room for all.
    max_choices: largest number of answers to one request (`n` times the number of prompts).
    max_live_sessions: sessions of live video (`/v1/live`) that are open at the same time; 0: none.
        live_idle_timeout_s: one that brings no frame and no question for so long ends.
    request_timeout_s: longest time for an answer, including waiting. body_timeout_s: longest time to receive a body.
    max_body_bytes: largest body. max_total_body_bytes: largest sum of the bodies of all running and waiting requests.
    drain_timeout_s: time for running answers to finish after SIGTERM.
    generation_defaults: defaults of temperature, top_p, top_k, min_p and repetition_penalty: 'model' takes them from
        the model's generation_config.json, 'openai' uses temperature 1 and nothing else.
    tool_call_parser, reasoning_parser: how the model writes calls and thoughts: a name of docs/answer_formats.md, or
        None, which finds it by the chat template.
    unknown_fields: 'ignore' unknown fields of requests, and hints that change no answer, and name them in the header
        `x-seesay-ignored`; or 'refuse' such requests.
    embedding_pooling: the embedding of a prompt on /v1/embeddings where a request does not say: the 'mean' of the last
        hidden states, the 'last' one, or 'tokens', a vector for each; None: as the model was trained, or the mean.
    trust_request_chat_template: let requests bring a chat template along (`chat_template`). It runs in the sandbox, but
        may hide or change turns.
    max_stored_responses: number of answers of /v1/responses that are stored for `previous_response_id`.
    files_dir: folder of uploaded files and of batches (`/v1/files`, `/v1/batches`), for one server; None: these routes
        are refused. files_max_bytes: most bytes of all files together.
    max_file_bytes: largest file that is uploaded.
    otlp_traces_endpoint: an OpenTelemetry collector to which spans of requests are sent over OTLP/HTTP, such as
        http://localhost:4318/v1/traces; needs the extra `otel`. None: no traces.
    log_level, max_log_len: as in `pipeline`. Prompts are logged at INFO and DEBUG only, cut to max_log_len characters.
    media: limits on the size and the sources of pictures and videos. Give the engine the same limits.
    ssl_certfile, ssl_keyfile, ssl_keyfile_password: serve https.
    """

    host: str = "0.0.0.0"
    port: int = 23333
    num_frontends: int = 1
    frontend_timeout_s: float = LIMIT_S
    num_replicas: int = 1
    devices: Sequence[int] = ()
    proxy_url: str | None = None
    proxy_key: str | None = field(default=None, repr=False)
    model_name: str | None = None
    model_aliases: Sequence[str] = ()
    any_model_name: bool = False
    api_keys: Sequence[str] = field(default=(), repr=False)
    admin_keys: Sequence[str] = field(default=(), repr=False)
    share_caches: bool = False
    allowed_weights_path: str | None = None
    allowed_adapter_folders: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    cors_methods: Sequence[str] = ("GET", "POST", "DELETE", "OPTIONS")
    cors_headers: Sequence[str] = ("*",)
    cors_credentials: bool = False
    max_concurrent_requests: int = 256
    max_queue: int = 256
    max_sequences_per_key: int | None = None
    max_choices: int = 128
    max_live_sessions: int = 64
    live_idle_timeout_s: float = 60.0
    request_timeout_s: float = 600.0
    body_timeout_s: float = 60.0
    max_body_bytes: int = 64 << 20
    max_total_body_bytes: int = 1 << 30
    drain_timeout_s: float = 30.0
    generation_defaults: Literal["model", "openai"] = "model"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    embedding_pooling: Pooling | None = None
    trust_request_chat_template: bool = False
    max_stored_responses: int = 256
    files_dir: str | None = None
    files_max_bytes: int = 10 << 30
    max_file_bytes: int = 200 << 20
    otlp_traces_endpoint: str | None = None
    log_level: str = "WARNING"
    max_log_len: int | None = 200
    media: MediaLimits = field(default_factory=MediaLimits.for_server)
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        check_parser_names(self.tool_call_parser, self.reasoning_parser)
        self._check_numbers()
        self._check_keys()
        self._check_names()
        if self.otlp_traces_endpoint is not None:
            read_endpoint(self.otlp_traces_endpoint)
        if (self.ssl_keyfile is not None) and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile requires ssl_certfile")
        if "*" in self.cors_origins and self.cors_credentials:
            raise ConfigError("cors_credentials requires cors_origins other than '*': any web page could use a session")

    def _check_numbers(self) -> None:
        least: dict[str, float] = {
            "port": 0, "num_frontends": 1, "num_replicas": 1, "max_concurrent_requests": 1, "max_queue": 0,
            "max_choices": 1, "max_body_bytes": 1, "max_total_body_bytes": 1, "drain_timeout_s": 0,
            "frontend_timeout_s": 1, "max_stored_responses": 0, "files_max_bytes": 1, "max_file_bytes": 1,
            "max_live_sessions": 0,
        }  # fmt: skip
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ConfigError(f"{name} must be at least {bound}, got {getattr(self, name)!r}")
        if self.max_sequences_per_key is not None and self.max_sequences_per_key < 1:
            raise ConfigError(f"max_sequences_per_key must be at least 1 or None, got {self.max_sequences_per_key}")
        for name in ("request_timeout_s", "body_timeout_s", "live_idle_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.port > 65535:
            raise ConfigError(f"port must be at most 65535, got {self.port}")

    def _check_keys(self) -> None:
        for name in ("api_keys", "admin_keys"):
            for key in getattr(self, name):
                if not key or not key.isascii() or key != key.strip():
                    raise ConfigError(f"{name}: a key must be non-empty ASCII text without leading or trailing spaces")
        if set(self.api_keys) & set(self.admin_keys):
            raise ConfigError("admin_keys: a key must not be one of api_keys: its holder could replace the weights")

    def _check_names(self) -> None:
        if self.allowed_weights_path is not None and not Path(self.allowed_weights_path).is_dir():
            raise ConfigError(f"allowed_weights_path must be an existing folder, got {self.allowed_weights_path!r}")
        for folder in self.allowed_adapter_folders:
            if not Path(folder).is_dir():
                raise ConfigError(f"allowed_adapter_folders must be existing folders, got {folder!r}")
        if self.model_name == "" or "" in self.model_aliases:
            raise ConfigError("model_name, model_aliases: a name must not be empty")
        if self.log_level.upper() not in LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LEVELS)}, got {self.log_level!r}")
