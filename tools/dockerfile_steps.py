"""Prints the steps of a target of the Dockerfile as a script that runs in a folder, where there is no Docker.

    python -m tools.dockerfile_steps cpu /tmp/image TORCH_INDEX=https://pypi.org/simple > steps.sh && bash steps.sh

Stages share the folder, /opt, /wheels and /source lie below it, and the Python of the images is `python3`. Steps that
need root (`useradd`, `apt-get`) are left out. The script ends with the image's command, `seesay`, in `$SEESAY`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NEEDS_ROOT = re.compile(r"useradd|apt-get")
_PLACES = re.compile(r"(?<![\w./])/(?=(?:opt|wheels|source)\b)")


@dataclass
class Stage:
    """A stage: what it begins from, and its instructions."""

    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def read_stages(text: str) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name, in their order."""
    stages: dict[str, Stage] = {}
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stage = Stage("")
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            parent, _, name = re.split(r"\s+", rest, maxsplit=2)
            stage = stages[name] = Stage(parent)
        elif word:
            stage.steps.append((word, rest.strip()))
    return stages


def needed_stages(stages: Mapping[str, Stage], target: str) -> list[str]:
    """Return the stages of which `target` is made, in the order of the file."""
    found, left = set[str](), [target]
    while left:
        name = left.pop()
        if name in stages and name not in found:
            found.add(name)
            copied = [match[1] for _, rest in stages[name].steps if (match := re.match(r"--from=(\S+)", rest))]
            left += [stages[name].parent, *copied]
    return [name for name in stages if name in found]


def make_script(text: str, target: str, folder: Path, arguments: Mapping[str, str]) -> str:
    """Return the script of `target`. `arguments`: those of the build."""
    stages = read_stages(text)
    return "\n".join(_make_lines(stages, needed_stages(stages, target), folder, arguments)) + "\n"


def _make_lines(
    stages: Mapping[str, Stage], names: list[str], folder: Path, arguments: Mapping[str, str]
) -> Iterator[str]:
    place = shlex.quote(str(folder))
    yield from ("#!/usr/bin/env bash", "set -euo pipefail", f"mkdir -p {place}")
    yield f'PATH={place}/bin:$PATH; mkdir -p {place}/bin; ln -sf "$(command -v python3)" {place}/bin/python'
    for name in names:
        yield f"# {name}"
        where = place
        for word, rest in stages[name].steps:
            if word == "WORKDIR" and _PLACES.match(rest):
                where = _inside(rest, folder)
                yield f"mkdir -p {where}"
            elif word == "ARG":
                key, _, value = rest.partition("=")
                yield f"export {key}={shlex.quote(arguments.get(key, value))}"
            elif word == "ENV" and rest.startswith("UV_"):
                yield f"export {_inside(rest, folder)}"
            elif word == "COPY" and not rest.startswith("--from"):
                *sources, aim = rest.split()
                yield f"cp -R {' '.join(shlex.quote(str(ROOT / source)) for source in sources)} {where}/{aim}"
            elif word == "RUN" and not _NEEDS_ROOT.search(rest):
                command = _inside(rest, folder).replace("pip wheel", "python -m pip wheel")
                yield f"(cd {where} && {command})"
    yield f"export SEESAY={place}/opt/seesay/bin/seesay"


def _inside(text: str, folder: Path) -> str:
    """Return `text` with the image's folders below `folder`."""
    return _PLACES.sub(f"{shlex.quote(str(folder))}/", text)


def main() -> None:
    target, folder, *arguments = sys.argv[1:]
    given = dict(argument.split("=", maxsplit=1) for argument in arguments)
    sys.stdout.write(make_script((ROOT / "Dockerfile").read_text(encoding="utf-8"), target, Path(folder), given))


if __name__ == "__main__":
    main()
