"""`seesay list`: the model families, text backbones and chat templates that can be used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from seesay.commands.arguments.options import add_plugins
from seesay.commands.command import Command

if TYPE_CHECKING:
    from seesay.vl.family import Family

_INDENT = "  "
_WIDTH = 100
_MODULES = (
    "other models of Transformers for text, or text with pictures, whose attention can be exchanged: OPT, Cohere 2, "
    "Aya Vision and many more (docs/models.md); what cannot run says why when it is opened"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print the models as a page: docs/models.md")
    add_plugins(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        from seesay.commands.models.models_page import make_page

        sys.stdout.write(make_page())
        return 0
    from seesay.llm.models.configs.kinds import list_backbones
    from seesay.templates import names
    from seesay.vl.registry import list_layouts, open_registry

    registry = open_registry(arguments.plugin)
    ours = [(name, family) for name, families in list_layouts().items() for family in families]
    out = sys.stdout.write
    out("model families of seesay (name, inputs, architectures in config.json)\n" + _list_families(ours))
    for plugin in registry.plugins:
        out(f"\nmodel families of {plugin.origin}\n" + _list_families(plugin.families.items()))
    out("\nthrough Transformers' modules\n" + _wrap_text(_MODULES))
    faults = [*map(str, registry.broken), *registry.contested.values()]
    if faults:
        out("\nmodel families that cannot be used\n" + "".join(f"{_INDENT}{fault}\n" for fault in faults))
    out("\ntext backbones (model_type of the text config)\n" + _wrap(list_backbones()))
    out("\nchat templates (--chat-template NAME; the default is the checkpoint's own)\n" + _wrap(names()))
    out("\nbuilt-in models\n" + _wrap(["seesay-demo"]))
    return 0


def _list_families(claims: Iterable[tuple[str, type[Family]]]) -> str:
    """Return the lines of families with the architectures that they claim."""
    by_name: dict[tuple[str, str], list[str]] = {}  # the families of a file share its name
    for architecture, family in claims:
        takes = ", ".join(["text", *(modality.value for modality in family.modalities)])
        by_name.setdefault((family.__module__.rpartition(".")[2], takes), []).append(architecture)
    lines = []
    width = max((len(name) for name, _ in by_name), default=0) + 2
    for (name, takes), architectures in sorted(by_name.items()):
        first, *others = sorted(architectures)
        lines.append(f"{_INDENT}{name:<{width}}{takes:<20}{first}\n")
        lines += [f"{_INDENT}{'':<{width + 20}}{architecture}\n" for architecture in others]
    return "".join(lines)


def _wrap(names: Iterable[str]) -> str:
    return _wrap_text("  ".join(names))


def _wrap_text(text: str) -> str:
    import textwrap

    lines = textwrap.wrap(text, _WIDTH - len(_INDENT), break_on_hyphens=False, break_long_words=False)
    return "".join(f"{_INDENT}{line}\n" for line in lines)


COMMAND = Command(
    name="list",
    summary="list model families, text backbones and chat templates",
    add_arguments=_add_arguments,
    run=_run,
    examples="  seesay list\n",
)
