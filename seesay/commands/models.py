"""`seesay list`: the model families, text backbones and chat templates that can be used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from seesay.commands.command import Command

_INDENT = "  "
_WIDTH = 100


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print the models as a page: docs/models.md")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        from seesay.commands.models_page import make_page

        sys.stdout.write(make_page())
        return 0
    from seesay.llm.models.kinds import list_backbones
    from seesay.templates import names
    from seesay.vl.registry import list_layouts

    modalities: dict[str, Sequence[str]] = {}
    architectures: dict[str, list[str]] = {}
    for architecture, families in list_layouts().items():
        for family in families:
            name = family.__module__.rpartition(".")[2]
            architectures.setdefault(name, []).append(architecture)
            modalities[name] = [modality.value for modality in family.modalities]
    rows = [
        (name, ", ".join(["text", *modalities[name]]), sorted(architectures[name])) for name in sorted(architectures)
    ]
    out = sys.stdout.write
    out("model families (name, inputs, architectures in config.json)\n")
    for name, takes, known in rows:
        out(f"{_INDENT}{name:<12}{takes:<20}{known[0]}\n")
        out("".join(f"{_INDENT}{'':<32}{architecture}\n" for architecture in known[1:]))
    out("\ntext backbones (model_type of the text config)\n" + _wrap(list_backbones()))
    out("\nchat templates (--chat-template NAME; the default is the checkpoint's own)\n" + _wrap(names()))
    out("\nbuilt-in models\n" + _wrap(["seesay-demo"]))
    return 0


def _wrap(names: Iterable[str]) -> str:
    import textwrap

    lines = textwrap.wrap("  ".join(names), _WIDTH - len(_INDENT), break_on_hyphens=False, break_long_words=False)
    return "".join(f"{_INDENT}{line}\n" for line in lines)


COMMAND = Command(
    name="list",
    summary="list model families, text backbones and chat templates",
    add_arguments=_add_arguments,
    run=_run,
    examples="  seesay list\n",
)
