"""The state that the routes of one server share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.errors import ConfigError, RequestError, show
from seesay.serving.errors import ApiError, Envelopes, bad_request
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.left_out import STREAM_WAIT_S, try_grammar
from seesay.serving.requests.sampling import SamplingDefaults
from seesay.serving.requests.submission import Answering
from seesay.serving.settings import ServerSettings
from seesay.serving.stored.batch_store import BatchStore
from seesay.serving.stored.file_store import FileStore
from seesay.serving.stored.shared_state import LocalState, SharedState
from seesay.serving.tracing import Tracing, open_tracing
from seesay.serving.traffic.admission import Gate
from seesay.serving.traffic.metrics import ServerMetrics

if TYPE_CHECKING:
    from fastapi import Request

    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.field_names import FieldNames
    from seesay.values import GenerationRequest


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """The engine of an app and what belongs to it. `own_names` are those of the model."""

    engine: AsyncEngine
    settings: ServerSettings
    own_names: tuple[str, ...]
    gate: Gate
    metrics: ServerMetrics
    answering: Answering
    defaults: SamplingDefaults
    shared: SharedState
    files: FileStore | None = None
    batches: BatchStore | None = None
    envelopes: Envelopes = field(default_factory=Envelopes)
    tracing: Tracing | None = None

    @classmethod
    def build(
        cls,
        engine: AsyncEngine,
        settings: ServerSettings,
        make_shared_state: Callable[[ServerMetrics, Answering], SharedState] | None = None,
    ) -> ServerState:
        """Return the state. `make_shared_state` makes the shared state that several frontends share. Raises
        `ConfigError` for media limits that the engine does not enforce, and for several frontend processes."""
        if settings.num_frontends > 1:
            raise ConfigError(
                f"num_frontends={settings.num_frontends}: an app answers in one process; start several with "
                "`seesay.serve(num_frontends=…)` or `seesay serve api_server --frontends …`"
            )
        folder = settings.media.allowed_local_media_path
        if folder is not None and engine.media_limits.allowed_local_media_path != folder:
            raise ConfigError(
                "settings.media allows a folder, but the engine has other limits: give it media_limits=settings.media"
            )
        metrics = ServerMetrics(engine)
        answering = Answering(engine, settings, metrics)
        metrics.add_gauge("seesay_requests_running", "HTTP requests being answered", lambda: answering.num_running)
        metrics.add_gauge(
            "seesay_requests_waiting", "HTTP requests that wait for a place", lambda: answering.num_waiting
        )
        path = Path(engine.model_path)
        name = settings.model_name or (path.resolve().name if path.is_dir() else engine.model_path)
        return cls(
            engine=engine,
            settings=settings,
            own_names=_find_own_names((name, *settings.model_aliases), engine.adapter_names),
            gate=Gate(settings),
            metrics=metrics,
            answering=answering,
            defaults=SamplingDefaults(engine, settings),
            shared=LocalState(engine, answering.abort, max_responses=settings.max_stored_responses)
            if make_shared_state is None
            else make_shared_state(metrics, answering),
            files=None if settings.files_dir is None else FileStore(Path(settings.files_dir), settings.files_max_bytes),
            tracing=open_tracing(settings.otlp_traces_endpoint, service="seesay"),
            batches=None if settings.files_dir is None else BatchStore(Path(settings.files_dir)),
        )

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.own_names[0]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that requests may use now, those of adapters last; answers carry the first, or the adapter's."""
        return *self.own_names, *self.engine.adapter_names

    def name_model(self, asked: str | None) -> str:
        """Return the model's name in the answer to a request that named `asked`: an adapter's own, or `model_name`."""
        return asked if asked is not None and asked in self.engine.adapter_names else self.model_name

    def check_model(self, name: str | None) -> None:
        """Raise `ApiError` 404 for an unknown model name. None is allowed."""
        if name is not None and name not in self.model_names and not self.settings.any_model_name:
            known = ", ".join(map(repr, self.model_names))
            raise ApiError(
                404,
                f"the model {name[:100]!r} does not exist; this server has {known}",
                param="model",
                code="model_not_found",
            )

    def check_chat_template(self, source: str | None) -> None:
        """Raise `ApiError` 400 for a chat template of a request that the settings do not trust. None is allowed."""
        if source is not None and not self.settings.trust_request_chat_template:
            raise bad_request(
                "chat_template is not accepted: this server does not trust templates of requests (start it with "
                "--trust-request-chat-template)",
                "chat_template",
                code="unsupported_parameter",
            )

    def fit_model(self, request: GenerationRequest, names: FieldNames, http: Request) -> GenerationRequest:
        """Return the request that thinks as far as the model does. Where nothing thinks and unknown fields are ignored,
        its fields about thinking are too. Raises `ApiError` 400, in the client's `names`, where the model cannot think
        as the request wants."""
        try:
            self.engine.check_thinking(request)
        except RequestError as error:
            explained = names.explain(error)
            ignored = http.scope["state"].get("ignored_fields")
            if ignored is None or self.engine.answer_format.reasoning is not None:
                raise explained from error
            ignored.append(explained.param)
            config = replace(request.gen_config, max_thinking_tokens=None)
            return replace(request, enable_thinking=None, reasoning_effort=None, gen_config=config)
        return request

    async def try_grammar(
        self,
        request: GenerationRequest,
        names: FieldNames,
        http: Request,
        *,
        left_out: tuple[str, ...] = (),
        is_background: bool = False,
    ) -> None:
        """Wait until the grammar of a request has been tried, a little while if its answer begins without. Notes what
        it does not hold, and `left_out`. Raises `ApiError` 400, in the client's `names`, for one that is refused, and
        `ClientGoneError`."""
        begins = request.streams or is_background
        timeout_s = STREAM_WAIT_S if begins else self.settings.request_timeout_s
        owned = replace(request, owner=caller_of(http.scope).turn)
        await try_grammar(self.engine, http, owned, names, left_out, timeout_s)

    def check_token_ids(self, token_ids: Iterable[object], param: str) -> None:
        """Raise `ApiError` 400 for an entry that is not a token id of the model."""
        vocab_size = self.engine.vocab_size
        for index, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                allowed = f"a token id of the vocabulary (0 to {vocab_size - 1})"
                message = f"{param}[{index}] must be {allowed}, got {show(token_id)}"
                raise bad_request(message, f"{param}[{index}]")

    def check_num_choices(self, num_prompts: int, n: int, field: str = "n") -> None:
        """Raise `ApiError` 400 for a request of more answers than `max_choices`. `field` says how many to a prompt."""
        if num_prompts * n > self.settings.max_choices:
            prompts = "one prompt" if num_prompts == 1 else f"{num_prompts} prompts"
            raise bad_request(
                f"{prompts} with {field}={n} are {num_prompts * n} answers; "
                f"at most {self.settings.max_choices} are allowed in one request",
                field if n > 1 else "prompt",
            )


def _find_own_names(names: Iterable[str], adapters: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the model, each once. Raises `ConfigError` for an adapter that is called like the model."""
    own = tuple(dict.fromkeys(names))
    if both := next((name for name in adapters if name in own), None):
        raise ConfigError(f"adapters: {both!r} is the name of the model itself: call the adapter otherwise")
    return own
