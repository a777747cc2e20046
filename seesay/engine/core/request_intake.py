"""Takes requests: from other threads into the loop's, and there to where they are computed or wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from seesay.engine.core.adapters import AdapterControl
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.grammars.grammar_rows import GrammarRows
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.core.outbox import Outbox
from seesay.engine.core.processor_imports import ProcessorImports
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.engine.failures import explain
from seesay.engine.token_messages import TokenRequest
from seesay.errors import RequestError
from seesay.llm.scheduling.scheduler import Scheduler


class RequestIntake:
    """Admits requests to `requests` and `scheduler`. Those that came behind a command, or whose adapter or grammar is
    not there yet, are held before."""

    def __init__(
        self,
        inbox: Inbox,
        outbox: Outbox,
        *,
        imports: ProcessorImports,
        scheduler: Scheduler,
        embeddings: EmbeddingSupply,
        adapters: AdapterControl,
        commands: WaitingCommands,
        grammars: GrammarRows,
        requests: LiveRequests,
        ends: RequestEnds,
        find_refusal: Callable[[LiveRequest], RequestError | None],
        begin: Callable[[LiveRequest], None],
    ) -> None:
        """`find_refusal` returns why a request cannot be computed now. `begin` is called with each that is."""
        self._inbox = inbox
        self._outbox = outbox
        self._imports = imports
        self._scheduler = scheduler
        self._embeddings = embeddings
        self._adapters = adapters
        self._commands = commands
        self._grammars = grammars
        self._requests = requests
        self._ends = ends
        self._find_refusal = find_refusal
        self._begin = begin

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Take requests in any thread, and prepare there what takes long."""
        if not self._outbox.open([request.request_id for request in requests]):
            return
        for request in requests:
            try:
                processors = self._imports.find(request.params.logits_processors)
                live = LiveRequest.make(request, processors)
                self._scheduler.prepare(live.sequence)
                self._inbox.put(partial(self.admit, live))
            except Exception as error:  # the prompt's parts do not fit together, or a processor is not there
                self._inbox.put(partial(self._refuse, request.request_id, explain(error)))

    def admit(self, request: LiveRequest) -> None:
        """Compute a request, hold it, or end it with the reason why it cannot be computed."""
        self._outbox.take(request.request_id)
        if self._commands:
            self._requests.add(request, Awaited.COMMANDS)
            return
        if (refusal := self._find_refusal(request)) is not None:
            self._embeddings.forget([request.request_id])
            self._ends.finish(request, "error", error=refusal)
            return
        self._embeddings.note_arrival(request.request_id)
        try:
            if not self._adapters.places.memory.take(request):
                self._requests.add(request, Awaited.ADAPTER)
                return
            if (compiling := self._grammars.take(request)) is not None:
                self._requests.add(request, Awaited.GRAMMAR)
                compiling.add_done_callback(
                    lambda done: self._inbox.put(partial(self._resume, request.request_id, done.exception()))
                )
                return
            self._requests.add(request)
            self._scheduler.add(request.sequence)
            self._begin(request)
        except Exception as error:
            self._scheduler.finish(request.request_id, "error", error)  # where it was taken, and failed then
            self._ends.finish(request, "error", error=error)

    def _resume(self, request_id: int, failure: BaseException | None) -> None:
        """Admit a request that waited for its grammar, or end it if that could not be compiled, unless it has ended."""
        request = self._requests.held[Awaited.GRAMMAR].pop(request_id, None)
        if request is not None:
            self.go_on(request, failure)

    def go_on(self, request: LiveRequest, failure: BaseException | None) -> None:
        """Admit a request that waited for something, or end it if that failed."""
        if failure is None:
            self.admit(request)
        else:
            self._ends.finish(request, "error", error=explain(failure))

    def _refuse(self, request_id: int, error: RequestError) -> None:
        """End a request that could not even be made live."""
        self._outbox.take(request_id)
        self._embeddings.note_arrival(request_id)
        self._requests.refuse(request_id, error)
