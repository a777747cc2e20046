"""`APIClient`: a synchronous client for a running server. Uses HTTP and JSON only, and imports no model code.

Method names, arguments and defaults are LMDeploy's. A stream is a generator: when it is closed early, the server stops
computing that answer.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

from seesay.errors import MissingExtraError, SeesayError

try:
    import httpx
except ImportError:
    raise MissingExtraError("the client", package="httpx", extra="serve") from None

DEFAULT_URL = "http://127.0.0.1:23333"
API_KEY_VARIABLE = "SEESAY_API_KEY"

_CONNECT_TIMEOUT_S = 10.0

Answers = Generator[dict[str, Any], None, None]
Prompt = str | Sequence[Mapping[str, Any]]


class APIError(SeesayError):
    """The server refused a request or cannot be reached.

    `status` is the HTTP status, None if there was no answer. `code` and `param` are those of the server's error.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param


class LiveAddress(NamedTuple):
    """The URL of a WebSocket, and the headers that open it."""

    url: str
    headers: Mapping[str, str]


class APIClient:
    """The routes of a server as methods. Thread-safe. Close it, or use it in a `with` statement.

    api_key: sent as a bearer token; None takes the environment variable SEESAY_API_KEY, if it is set.
    timeout_s: longest wait for the next bytes of an answer.
    verify: False accepts any certificate; an SSLContext decides which are accepted.
    headers: sent with every request; `{"x-seesay-timings": "1"}` asks for the timings of each answer.

    All methods raise `APIError` when the server refuses the request or cannot be reached.
    """

    def __init__(
        self,
        api_server_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        verify: bool | ssl.SSLContext = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.api_server_url = _clean_url(api_server_url)
        key = api_key if api_key is not None else os.environ.get(API_KEY_VARIABLE)
        given = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))
        try:
            self._http = httpx.Client(
                base_url=self.api_server_url,
                headers=given,
                timeout=timeout,
                verify=verify,
                # A proxy from the environment cannot reach the loopback addresses of this machine.
                trust_env=httpx.URL(self.api_server_url).host not in ("127.0.0.1", "localhost", "::1"),
            )
        except (httpx.InvalidURL, UnicodeError, OSError) as error:
            raise APIError(f"cannot use the server address {api_server_url!r}: {error}") from None
        self._models: list[str] | None = None

    # --- models and health ------------------------------------------------------------------------------------------

    @property
    def available_models(self) -> list[str]:
        """Names of the server's models. They are requested once and cached."""
        if self._models is None:
            models = self._get("/v1/models", "data")
            self._models = [str(_take(model, "id")) for model in (models if isinstance(models, list) else ())]
        return list(self._models)

    def is_healthy(self) -> bool:
        """Return whether the server can be reached and takes requests."""
        self._check_open()
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def version(self) -> str:
        """The server's version of seesay."""
        return str(self._get("/version", "version"))

    def live_address(self) -> LiveAddress:
        """Return where a WebSocket of live video (`/v1/live`, docs/sessions.md) is opened, and with which headers."""
        headers = {name: value for name, value in self._http.headers.items() if name == "authorization"}
        return LiveAddress(self.api_server_url.replace("http", "ws", 1) + "/v1/live", headers)

    # --- OpenAI's routes --------------------------------------------------------------------------------------------

    def chat_completions_v1(
        self,
        model: str,
        messages: Prompt,
        temperature: float | None = 0.7,
        top_p: float | None = 1.0,
        n: int | None = 1,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        user: str | None = None,
        repetition_penalty: float | None = None,
        ignore_eos: bool | None = None,
        skip_special_tokens: bool | None = None,
        **kwargs: Any,
    ) -> Answers:
        """Answer a conversation. Yields one completion, or with `stream` its chunks, in the format of OpenAI's API.

        messages: OpenAI messages, or the user's text. Further arguments are fields of the request.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {
            "model": model,
            "messages": list(messages),
            "temperature": temperature,
            "top_p": top_p,
            "n": n,
            "max_tokens": max_tokens,
            "stop": stop,
            "stream": stream,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "user": user,
            "repetition_penalty": repetition_penalty,
            "ignore_eos": ignore_eos,
            "skip_special_tokens": skip_special_tokens,
            **kwargs,
        }
        return self._answers("/v1/chat/completions", body)

    def completions_v1(
        self,
        model: str,
        prompt: str | Sequence[str] | Sequence[int],
        suffix: str | None = None,
        temperature: float | None = 0.7,
        n: int | None = 1,
        max_tokens: int | None = 16,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        top_p: float | None = 1.0,
        top_k: int | None = None,
        user: str | None = None,
        repetition_penalty: float | None = None,
        ignore_eos: bool | None = None,
        skip_special_tokens: bool | None = None,
        **kwargs: object,
    ) -> Answers:
        """Continue a raw text. Yields one completion, or with `stream` its chunks, in the format of OpenAI's API."""
        body = {
            "model": model,
            "prompt": prompt,
            "suffix": suffix,
            "temperature": temperature,
            "n": n,
            "max_tokens": max_tokens,
            "stream": stream,
            "stop": stop,
            "top_p": top_p,
            "top_k": top_k,
            "user": user,
            "repetition_penalty": repetition_penalty,
            "ignore_eos": ignore_eos,
            "skip_special_tokens": skip_special_tokens,
            **kwargs,
        }
        return self._answers("/v1/completions", body)

    # --- our own routes ---------------------------------------------------------------------------------------------

    def chat_interactive_v1(
        self,
        prompt: Prompt,
        image_url: str | Sequence[str] | None = None,
        session_id: int = -1,
        interactive_mode: bool = False,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        request_output_len: int | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        temperature: float | None = None,
        repetition_penalty: float | None = None,
        ignore_eos: bool | None = None,
        skip_special_tokens: bool | None = None,
        **kwargs: object,
    ) -> Answers:
        """Answer the next turn of a conversation that the server stores under `session_id`.

        interactive_mode: False deletes the stored conversation first. Yields `{"text", "tokens", "input_tokens",
        "history_tokens", "finish_reason"}`; with `stream` one for each new piece of text.
        """
        body = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "image_url": image_url,
            "session_id": session_id,
            "interactive_mode": interactive_mode,
            "stream": stream,
            "stop": stop,
            "request_output_len": request_output_len,
            "top_p": top_p,
            "top_k": top_k,
            "temperature": temperature,
            "repetition_penalty": repetition_penalty,
            "ignore_eos": ignore_eos,
            "skip_special_tokens": skip_special_tokens,
            **kwargs,
        }
        return self._answers("/v1/chat/interactive", body)

    def chat(
        self,
        prompt: Prompt,
        session_id: int,
        image_url: str | Sequence[str] | None = None,
        request_output_len: int = 512,
        stream: bool = False,
        **kwargs: Any,
    ) -> Generator[tuple[str, int, str | None], None, None]:
        """Answer one more turn of a session. Yields (new text, tokens so far, finish reason)."""
        answers = self.chat_interactive_v1(
            prompt,
            image_url,
            session_id,
            interactive_mode=True,
            stream=stream,
            request_output_len=request_output_len,
            **kwargs,
        )
        for answer in answers:
            yield _take(answer, "text"), _take(answer, "tokens"), _take(answer, "finish_reason")

    def end_session(self, session_id: int) -> None:
        """Delete a session on the server, and stop the answer that is being generated for it."""
        for _ in self.chat_interactive_v1("", session_id=session_id, interactive_mode=False):
            pass

    def generate(
        self, prompt: str | None = None, input_ids: Sequence[int] | None = None, stream: bool = False, **kwargs: object
    ) -> Answers:
        """Continue a raw text or token ids. Yields `{"text", "output_ids", "meta_info"}`, with `stream` per piece."""
        body = {"prompt": prompt, "input_ids": None if input_ids is None else list(input_ids), "stream": stream}
        return self._answers("/generate", {**body, **kwargs})

    def encode(self, input: str | Sequence[str], do_preprocess: bool = False, add_bos: bool = True) -> tuple[Any, Any]:
        """Return (token ids, their number) of a text, or lists of both for several texts.

        do_preprocess: put the text into the chat template as a user message. add_bos: add the special tokens that the
            tokenizer puts around a text.
        """
        texts = [input] if isinstance(input, str) else list(input)
        rows: list[list[int]] = []
        for text in texts:
            messages = [{"role": "user", "content": text}] if do_preprocess else None
            body = {"messages": messages} if messages else {"prompt": text, "add_special_tokens": add_bos}
            rows.append([int(token_id) for token_id in _take(self._post("/tokenize", body), "tokens")])
        return (rows[0], len(rows[0])) if isinstance(input, str) else (rows, [len(row) for row in rows])

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        body = {"tokens": list(token_ids), "skip_special_tokens": skip_special_tokens}
        return str(_take(self._post("/detokenize", body), "prompt"))

    # --- connection -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.api_server_url!r})"

    def _get(self, path: str, key: str) -> object:
        """Return the value of `key` in the answer to `GET path`."""
        with self._explain():
            return _take(_read_json(self._http.get(path)), key)

    def _post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        with self._explain():
            return _read_json(self._http.post(path, json=_without_none(body)))

    def _answers(self, path: str, body: Mapping[str, object]) -> Answers:
        """Yield the one answer, or the events of a stream. The request is sent when the first item is requested."""
        if not body.get("stream"):
            yield self._post(path, body)
            return
        with self._explain(), self._http.stream("POST", path, json=_without_none(body)) as response:
            if response.status_code != 200 or "text/event-stream" not in response.headers.get("content-type", ""):
                response.read()
                _read_json(response)
                raise APIError(
                    f"{self.api_server_url} did not answer with a stream of events", status=response.status_code
                )
            for event in _events(response.iter_lines()):
                if event.get("error") is not None:
                    raise _make_error(event["error"], response.status_code)
                yield event

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise APIError("this client is closed: create a new one")

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Turn exceptions of httpx into `APIError`s that say what to do."""
        self._check_open()
        try:
            yield
        except httpx.TimeoutException as error:
            kind = "reach" if isinstance(error, httpx.ConnectTimeout) else "get an answer in time from"
            raise APIError(f"cannot {kind} the server at {self.api_server_url}") from None
        except httpx.ConnectError as error:
            raise APIError(
                f"cannot reach the server at {self.api_server_url} ({error}): is it running? "
                "`seesay serve api_server` starts one"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            self._check_open()  # another thread may have closed it meanwhile
            if not isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
                raise
            reason = str(error) or type(error).__name__
            raise APIError(f"the connection to the server at {self.api_server_url} broke: {reason}") from None


def _clean_url(url: str) -> str:
    """Return the root URL of a server given as `host:port`, with or without http:// and a trailing /v1. 0.0.0.0 becomes
    127.0.0.1."""
    url = url.strip().rstrip("/").removesuffix("/v1")
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise APIError(f"the server's address must begin with http:// or https://, got {url!r}")
    return url.replace("://0.0.0.0", "://127.0.0.1", 1)


def _without_none(body: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not None}


def _events(lines: Iterator[str]) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of server-sent events up to `[DONE]`. Raises APIError when the stream ends before that."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise APIError(f"the answer broke off: an event of the stream is incomplete: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise APIError(f"an event of the stream is not a JSON object: {data[:80]!r}")
        yield event
    raise APIError("the answer broke off: the stream ended without [DONE]")


def _read_json(response: httpx.Response) -> dict[str, object]:
    """Return the JSON object in an answer. Raise `APIError` for an error status, and for any other content.

    Gateways and other servers may report errors with status 200: an object under "error" is an error with any status.
    """
    try:
        value = response.json()
    except ValueError:
        value = None
    if not response.is_success:
        raise _make_status_error(response, value)
    if not isinstance(value, dict):
        kind = response.headers.get("content-type") or "no content type"
        raise APIError(
            f"{response.url} answered with {response.status_code} ({kind}) but not with a JSON object: "
            "is it the address of a seesay server?",
            status=response.status_code,
        )
    if isinstance(value.get("error"), Mapping):
        raise _make_error(value["error"], response.status_code)
    return value


def _make_status_error(response: httpx.Response, value: object) -> APIError:
    """Return the error for an answer with an error status and this JSON, None for other content."""
    error = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    if error is None and response.status_code == 404:
        return APIError(f"{response.url} is not there (404): is it the address of a seesay server?", status=404)
    return _make_error(error or response.reason_phrase or "no answer", response.status_code)


def _take(answer: object, key: str) -> Any:
    """Return the value of `key` in an answer. Raises APIError when there is none."""
    if not isinstance(answer, Mapping) or key not in answer:
        raise APIError(f"the server's answer has no {key!r}: is it a seesay server?")
    return answer[key]


def _make_error(error: object, status: int) -> APIError:
    if not isinstance(error, Mapping):
        return APIError(f"the server refused ({status}): {error}", status=status)
    message = str(error.get("message", error))
    return APIError(message, status=status, code=error.get("code"), param=error.get("param"))
