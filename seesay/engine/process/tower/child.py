"""The process of a vision encoder, `python -m seesay.engine.process.tower.child`: loads the tower and encodes.

It ends with the process that started it.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from seesay.engine.process.kinds import Failure, Hello
from seesay.engine.process.link import Link, LinkClosedError, receive_next
from seesay.engine.process.log_sender import send_logs
from seesay.engine.process.parent import Parent, exit_at_once
from seesay.engine.process.tower import tower_messages
from seesay.errors import RequestError

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder

ToCore = Link[tower_messages.FromTower, tower_messages.ToTower]


def main() -> int:
    """Encode until told to stop. Returns the exit status."""
    gc.disable()  # until the tower is loaded
    parent = Parent(receives=tower_messages.ToTower)
    link: ToCore = parent.link
    link.send(Hello())
    start = receive_next(link)
    parent.confirm()
    if not isinstance(start, tower_messages.Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    send_logs(link, start.log_level)
    try:
        encoder = load(start)
        link.send(tower_messages.Loaded())
        while isinstance(message := receive_next(link), tower_messages.Encode):
            answer = _encode(encoder, message)
            del message  # with its arrays, whose shared memory is free again
            link.send(answer)
    except LinkClosedError:
        return 1
    except BaseException as error:
        from seesay.engine.process.failures import describe_failure

        link.send(describe_failure(error))
        link.close(delivers=True)
        return 1
    return 0


def load(start: tower_messages.Start) -> Encoder:
    """Return the tower. Raises `CheckpointError`, `ConfigError`."""
    import torch

    from seesay.config import EngineConfig
    from seesay.device.host_memory import bound_allocators
    from seesay.device.query import find_device
    from seesay.engine.core.loading.encoder_loading import build_encoder, try_encoder
    from seesay.engine.opened_model import open_model

    gc.freeze()
    bound_allocators()
    config = EngineConfig(**start.engine)
    model = open_model(Path(start.folder), config)
    device = find_device(start.device)
    with model.checkpoint.blamed():
        encoder = build_encoder(model, config, device=device, dtype=getattr(torch, start.dtype))
    assert encoder is not None, "a model without a tower has no process for it"
    if device.type != "cpu":
        try_encoder(encoder, model.family)  # what it takes is taken before the core sizes its KV cache
    gc.collect()
    gc.freeze()
    gc.enable()
    return encoder


def _encode(encoder: Encoder, message: tower_messages.Encode) -> tower_messages.Encoded:
    import torch

    from seesay.device.query import is_out_of_memory, release_cached_memory
    from seesay.device.streams import on_device
    from seesay.engine.process.failures import describe_failure

    try:
        with torch.inference_mode(), on_device(encoder.device):
            return tower_messages.Encoded.of(encoder.encode(message.restore()))
    except RequestError as error:
        return tower_messages.Encoded([], "", failure=Failure.of(error))
    except Exception as error:
        if is_out_of_memory(error):
            error.__traceback__ = None
            release_cached_memory(encoder.device)
        return tower_messages.Encoded([], "", raised=describe_failure(error))


def run() -> NoReturn:
    """End the process with the status of `main`."""
    exit_at_once(main())


if __name__ == "__main__":
    run()
