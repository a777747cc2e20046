"""Pictures, videos, tokenizers and a small web server to try the processors on."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from PIL import Image
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers as tokenizer_trainers
from transformers import PreTrainedTokenizerFast

from seesay.processors.text.tokenizer import Tokenizer

Frames = npt.NDArray[np.uint8]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox runs away!",
    "Le café est fermé. Смотри на картинку. 日本語のテキスト と 猫 😀👩‍👩‍👧",
    "USER: what is in the image?\nASSISTANT: a red circle and two blue squares.",
]


def make_picture(height: int = 40, width: int = 60, seed: int = 0) -> Frames:
    """A smooth colourful picture uint8 [H, W, 3]: compresses well and shows flips and turns."""
    rng = np.random.default_rng(seed)
    ys, xs = np.mgrid[0:height, 0:width]
    waves = [
        np.sin(ys * a / height * 6 + b) + np.cos(xs * c / width * 6 + d) for a, b, c, d in rng.uniform(0.5, 2, (3, 4))
    ]
    return ((np.stack(waves, axis=-1) + 2) * 63.75).astype(np.uint8)


def encode_picture(image: Image.Image | Frames, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def picture() -> Frames:
    return make_picture()


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """`encode(image, kind="PNG", **options)`: the bytes of a file that Pillow writes."""
    return encode_picture


# --- videos ----------------------------------------------------------------------------------------------------------


def write_video(
    file: io.BytesIO | str,
    frames: Frames,
    *,
    fps: int = 10,
    kind: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times_ms: Sequence[int] | None = None,
    **codec_options: str,
) -> None:
    """`times_ms`, multiples of 40, say when each frame is shown, in place of `fps`."""
    import av

    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=fps if times_ms is None else 25, options=codec_options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        for index, array in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[index] // 40, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def make_video(num_frames: int = 30, height: int = 48, width: int = 64) -> Frames:
    """Frame i is of one grey that grows with i, with a white corner at the top left: uint8 [N, H, W, 3]."""
    greys = np.linspace(16, 200, num_frames).astype(np.uint8)
    frames = np.broadcast_to(greys[:, None, None, None], (num_frames, height, width, 3)).copy()
    frames[:, : height // 4, : width // 4] = 255
    return frames


@pytest.fixture(scope="session")
def encode_video() -> Callable[..., bytes]:
    """`encode_video(frames, fps=…, kind=…, codec=…, …)`: the bytes of a file that PyAV writes."""

    def write(frames: Frames, **options: Any) -> bytes:
        buffer = io.BytesIO()
        write_video(buffer, frames, **options)
        return buffer.getvalue()

    return write


@pytest.fixture(scope="session")
def video_frames() -> Frames:
    return make_video()


@pytest.fixture(scope="session")
def video_bytes(encode_video: Callable[..., bytes], video_frames: Frames) -> bytes:
    """An H.264 MP4 of `video_frames`, 10 frames per second, a key frame every 5."""
    return encode_video(video_frames, g="5")


# --- tokenizers ------------------------------------------------------------------------------------------------------


def _finish(backend: tokenizers.Tokenizer, **special: str) -> Tokenizer:
    return Tokenizer.of(PreTrainedTokenizerFast(tokenizer_object=backend, **special))


def _byte_level(*, bos: bool) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = tokenizer_trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
    backend.add_special_tokens(special)
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    if bos:
        bos_id = backend.token_to_id("<|begin|>")
        backend.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", bos_id)]
        )
    return _finish(backend, bos_token="<|begin|>", eos_token="<|im_end|>")


def _byte_fallback(*, kind: str) -> Tokenizer:
    """As SentencePiece models are converted: '▁' for blanks, letters outside the vocabulary as byte tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({char for char in CORPUS[0] + CORPUS[2] if char not in " \n"} | {"é"})
    words = sorted({"▁" + word for text in (CORPUS[0], CORPUS[2]) for word in text.split()})
    pieces += letters
    if kind == "unigram":
        scored = [(piece, -float(10 - min(len(piece), 9))) for piece in [*pieces, *words]]
        backend = tokenizers.Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    else:
        merges = [("▁", letter) for letter in letters] + [("t", "h"), ("▁t", "h"), ("▁th", "e"), ("e", "r")]
        pieces += [a + b for a, b in merges if a + b not in pieces]
        vocab = {piece: index for index, piece in enumerate(pieces)}
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.add_special_tokens([tokenizers.AddedToken("<image>", normalized=False, special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return _finish(backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _word_piece() -> Tokenizer:
    pieces = ["[UNK]", "[CLS]", *"abcdefghij", *(f"##{char}" for char in "abcdefghij"), ".", "'", "s", "is", "n't"]
    backend = tokenizers.Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    return _finish(backend, unk_token="[UNK]")


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": lambda: _byte_level(bos=False),
    "byte_level_bos": lambda: _byte_level(bos=True),
    "byte_fallback": lambda: _byte_fallback(kind="bpe"),
    "unigram": lambda: _byte_fallback(kind="unigram"),
    "word_piece": _word_piece,
}


@pytest.fixture(scope="session")
def tokenizer_named() -> Callable[[str], Tokenizer]:
    """`tokenizer_named(name)`: one of `MAKERS`, made once."""
    made: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in made:
            made[name] = MAKERS[name]()
        return made[name]

    return get


# --- a web server ----------------------------------------------------------------------------------------------------


class Site:
    """A web server on loopback. `routes[path]` is called with the request's handler; `paths` were asked for."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.paths: list[str] = []
        self.hosts: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.paths.append(self.path)
                site.hosts.append(self.headers["Host"])
                self.close_connection = True
                route = site.routes.get(self.path.partition("?")[0])
                try:
                    if route is None:
                        self.send_error(404)
                    else:
                        route(self)
                except OSError:
                    pass  # the client has gone, as some tests want it to

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes, *, length: int | None = None, **headers: str) -> str:
        """Answer `path` with `body`, declared as `length` bytes; gives the URL."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body) if length is None else length))
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(body)

        self.routes[path] = answer
        return self.url(path)

    def redirect(self, path: str, location: str) -> str:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", location)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        self.routes[path] = answer
        return self.url(path)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


@pytest.fixture
def png_file(tmp_path: Path, picture: Frames) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(encode_picture(picture))
    return path
