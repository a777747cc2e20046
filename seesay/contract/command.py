"""The command: opens a family with a checkpoint, runs the checks, and prints a line for each."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.contract.checks import MEDIA_CHECKS, TEXT_CHECKS, Check
from seesay.contract.items import Subject
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError, ConfigError, SeesayError, describe
from seesay.vl.family import Family
from seesay.vl.registry import open_registry
from seesay.vl.weight_map import WeightMap

Named = tuple[str, Callable[[], object]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 where a check found a fault, or the family cannot be checked."""
    parser = argparse.ArgumentParser(
        prog="python -m seesay.vl.check_family",
        description="Checks a model family against the contract that all families hold (docs/plugins.md). Without a "
        "checkpoint only what the family declares is checked.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="the family (`seesay list`), its class, or an architecture that it claims"
    )
    parser.add_argument("--checkpoint", metavar="MODEL", help="a folder or hub id; a tiny one will do")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="where the family is, as always")
    given = parser.parse_args(arguments)
    if not __debug__:
        parser.error("the checks are assertions, which python -O leaves out: run it without -O")
    try:
        return check(given.name, given.checkpoint, given.plugin)
    except SeesayError as error:
        message = str(error).replace("plugins=", "--plugin=")
        sys.stderr.write(f"{parser.prog}: error: {message}\n")
        return 1


def check(name: str, model: str | None, plugins: Sequence[str]) -> int:
    """Run the checks. Returns the exit status. Raises `ConfigError` for a family that is not known, and
    `CheckpointError` for a checkpoint that is not the family's."""
    registry = open_registry(plugins)
    named = [family for plugin in registry.plugins for family in _find(name, plugin.families)]
    families = named or _find(name, registry.claims)
    if not families:
        raise ConfigError(f"there is no family {name!r}: `seesay list` shows all")
    checks = [(f"{family.__name__} declares what it must", _declared(family)) for family in families]
    num_faults = sum(_run(*each) for each in checks)
    if model is None:
        _print("skipped", "all other checks", "give --checkpoint")
    else:
        num_faults += sum(_run(*each) for each in _list_checks(resolve_checkpoint(model), families, plugins))
    return int(num_faults > 0)


def _find(name: str, claims: Mapping[str, type[Family]]) -> list[type[Family]]:
    """Return the families of this name: the name of a file with families, of a class, or of a claim."""
    found = [family for claim, family in claims.items() if name in (claim, family.__name__, _name_of(family))]
    return list(dict.fromkeys(found))


def _list_checks(folder: Path, families: Sequence[type[Family]], plugins: Sequence[str]) -> Iterator[Named]:
    """Yield the checks of a checkpoint. Checks of answers come last: they start an engine."""
    import torch

    opened = open_model(folder, EngineConfig(device_type="cpu", plugins=tuple(plugins)))
    family = opened.family
    if type(family) not in families:
        raise CheckpointError(
            f"{folder} is a {opened.checkpoint.architecture}: its family is {family.name} ({type(family).__name__})"
        )
    subject = Subject(name=family.name, path=folder, family=family, tokenizer=opened.tokenizer, encoder=None)

    def load_tower() -> None:
        subject.encoder = family.build_encoder(torch.device("cpu"), torch.float32)

    yield from _name(TEXT_CHECKS, subject)
    if family.modalities:
        yield "the tower loads its weights", load_tower
    if subject.encoder is not None:
        yield from _name(MEDIA_CHECKS, subject)
    from seesay.contract.engine_checks import Answers

    made: list[Answers] = []
    yield "every prompt is answered", lambda: made.append(Answers(folder, family, plugins))
    for answers in made:  # none, where a prompt has no answer
        for method in (
            answers.batched_equal_alone,
            answers.chunked_and_cached_equal_alone,
            answers.greedy_tokens_equal_generate,
        ):
            yield method.__name__.replace("_", " "), method


def _name(checks: Sequence[Check], subject: Subject) -> Iterator[Named]:
    for each in checks:
        yield each.__name__.replace("_", " "), partial(each, subject)


def _run(title: str, run: Callable[[], object]) -> bool:
    """Run a check and print its line. Returns whether it found a fault."""
    from seesay.contract.engine_checks import OracleMissingError

    try:
        run()
    except OracleMissingError as error:
        _print("skipped", title, str(error))
    except Exception as error:
        _print("FAULT", title, _explain(error))
        return True
    else:
        _print("ok", title)
    return False


def _explain(error: Exception) -> str:
    """Return the message of an error; of an assertion without one, its line of code."""
    if not isinstance(error, AssertionError):
        return describe(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return str(error) or f"{Path(last.filename).name}:{last.lineno}: {last.line}"


def _print(outcome: str, title: str, reason: str = "") -> None:
    line = " ".join(f"{title}: {reason}".split()) if reason else title
    sys.stdout.write(f"{outcome:<8}{line}\n")
    sys.stdout.flush()


def _name_of(family: type[Family]) -> str:
    return family.__module__.rpartition(".")[2]


def _declared(family: type[Family]) -> Callable[[], None]:
    """Return the check of what a family's class says."""

    def run() -> None:
        missing = sorted(getattr(family, "__abstractmethods__", ()))
        assert not missing, f"it does not have {', '.join(missing)}"
        assert isinstance(getattr(family, "weights", None), WeightMap), "weights must be a WeightMap"
        unknown = [kind.value for kind in family.options if kind not in family.modalities]
        assert not unknown, f"it has options of {unknown}, which are not among its modalities"
        options = {name for names in family.options.values() for name in names}
        others = sorted({*family.switches, *family.frame_options} - options)
        assert not others, f"switches or frame_options name {others}, which are not among its options"

    return run
