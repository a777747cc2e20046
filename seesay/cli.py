"""The `seesay` command. Each subcommand is a `Command`. Its code is imported when it runs, so that help is fast."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence

from seesay.commands import check_env, demo
from seesay.commands.arguments import completion
from seesay.commands.arguments.advice import adapt
from seesay.commands.arguments.config_file import add_config_option, use_config_file
from seesay.commands.arguments.parser import HelpFormatter, Parser
from seesay.commands.bench import bench, replay
from seesay.commands.chat import chat
from seesay.commands.command import Command
from seesay.commands.files import batch, ocr
from seesay.commands.models import check, lite, models, plan
from seesay.commands.serve import serve
from seesay.version import __version__

_EXAMPLES = """\
  seesay demo                                      see the built-in model at work, nothing to download
  seesay chat                                      chat with it; /image scene.png attaches a picture
  seesay chat Qwen/Qwen2.5-VL-3B-Instruct          chat with a model from the Hugging Face hub
  seesay serve api_server Qwen/Qwen2.5-VL-7B-Instruct --server-port 23333
                                                   the OpenAI and Anthropic APIs on http://0.0.0.0:23333
  seesay serve api_client http://localhost:23333   chat with that server
  seesay serve gradio http://localhost:23333       the same in a browser
  seesay batch questions.jsonl answers.jsonl       answer a file of requests in OpenAI's batch format
  seesay ocr report.pdf -o report.md               read a document, page by page
  seesay replay requests.jsonl --model MODEL       answer what a server has recorded again, and compare
  seesay lite auto_awq Qwen/Qwen2.5-VL-7B-Instruct --work-dir qwen2.5-vl-7b-awq
                                                   a checkpoint with 4-bit weights
  seesay COMMAND --help                            the options of a command
"""

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    chat.COMMAND,
    serve.COMMAND,
    batch.COMMAND,
    ocr.COMMAND,
    bench.COMMAND,
    replay.COMMAND,
    lite.COMMAND,
    models.COMMAND,
    check.COMMAND,
    plan.COMMAND,
    check_env.COMMAND,
    completion.make_command(lambda: make_parser()),  # noqa: PLW0108 - which is defined below
)


def make_parser(commands: Sequence[Command] = COMMANDS) -> Parser:
    """Return the parser of `seesay` and its subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: a default of the subcommand's parser would overwrite `seesay --debug COMMAND`.
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="print the traceback of an error"
    )
    add_config_option(common)
    parser = Parser(
        prog="seesay",
        description="See images and video, say text: serve vision-language models.",
        epilog="examples:\n" + _EXAMPLES,
        formatter_class=HelpFormatter,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"seesay {__version__}")
    _add_commands(parser, commands, common)
    return parser


def _add_commands(
    parser: argparse.ArgumentParser, commands: Sequence[Command], common: argparse.ArgumentParser
) -> None:
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in commands:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            usage=f"%(prog)s {command.usage}" if command.usage else None,
            description=command.summary[:1].upper() + command.summary[1:] + ".",
            epilog=f"examples:\n{command.examples}" if command.examples else None,
            formatter_class=HelpFormatter,
            parents=[common],
        )
        command.add_arguments(subparser)
        if command.children:
            _add_commands(subparser, command.children, common)
        subparser.set_defaults(run=command.run, parser=subparser)


def main(argv: Sequence[str] | None = None, commands: Sequence[Command] = COMMANDS) -> int:
    """Run the command line and return the exit status. An error is printed to stderr as one line."""
    parser = make_parser(commands)
    use_config_file(parser, sys.argv[1:] if argv is None else argv)
    arguments, extra = parser.parse_known_args(argv)
    command = getattr(arguments, "parser", parser)
    if extra:
        parser.refuse_extra(extra, command=command, model=getattr(arguments, "model_path", None))
    if getattr(arguments, "run", None) is None:
        command.print_help()
        return 0
    try:
        _check_folder()
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nseesay: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it (`seesay demo | head`). This is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(error, command, is_debug=getattr(arguments, "debug", False))


def _check_folder() -> None:
    """Raise `ConfigError` in a folder that has been removed: libraries end the process there."""
    try:
        os.getcwd()  # noqa: PTH109 - without a Path, whose import takes time
    except OSError:
        from seesay.errors import ConfigError

        raise ConfigError("the current folder does not exist any more: change to another one") from None


def _report(error: Exception, command: argparse.ArgumentParser, *, is_debug: bool) -> int:
    from seesay.errors import SeesayError

    if is_debug:
        traceback.print_exception(error)
        return EXIT_ERROR
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SeesayError):
        print(f"seesay: error: {adapt(text, command)}", file=sys.stderr)
    elif isinstance(error, OSError) and error.errno in _FULL:
        what = "the output" if error.filename is None else repr(str(error.filename))
        print(f"seesay: error: cannot write {what}: {error.strerror}", file=sys.stderr)
    else:
        print(f"seesay: error: {type(error).__name__}: {text} (--debug prints the traceback)", file=sys.stderr)
    return EXIT_ERROR
