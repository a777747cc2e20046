"""`seesay chat`: chat with a model in this process, in a terminal or through pipes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.arguments.advice import adapt
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.commands.chat.answering import Answerer
    from seesay.commands.chat.terminal import Terminal

_EXAMPLES = """\
  seesay chat                                      chat with the built-in model
  seesay chat Qwen/Qwen2.5-VL-3B-Instruct --device cuda:1
  seesay chat --image scene.png --prompt 'describe this image'
                                                   answer one question and exit
  echo 'Calculate 3 + 4.' | seesay chat            one message per line; prints only the answers
  seesay chat --prompt - < question.txt            the whole input is one message
in the chat, /image PATH attaches a picture and /help lists all commands.
"""


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all chats share."""
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="the system prompt")
    group.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="PATH",
        help="a picture (path or URL) for the first message; may be repeated",
    )
    group.add_argument(
        "--video",
        action="append",
        default=[],
        metavar="PATH",
        help="a video for the first message; may be repeated",
    )
    group.add_argument(
        "--audio",
        action="append",
        default=[],
        metavar="PATH",
        help="audio (a path or URL) for the first message; may be repeated",
    )
    group.add_argument(
        "--document",
        action="append",
        default=[],
        metavar="PATH",
        help="a PDF, or a TIFF of several pages, for the first message; may be repeated",
    )
    group.add_argument("--prompt", metavar="TEXT", help="answer this message and exit; - reads it from standard input")
    group.add_argument("--load", metavar="FILE", help="continue a conversation that /save wrote as .json")
    options.add_generation_options(parser)


def open_terminal() -> Terminal:
    """Return a terminal on standard input and output that tolerates invalid UTF-8."""
    from seesay.commands.chat.history import History, find_history_file
    from seesay.commands.chat.terminal import Terminal

    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    return Terminal(history=History(find_history_file()))


def run_chat(arguments: argparse.Namespace, model: Answerer, terminal: Terminal) -> int:
    """Chat until the input ends, or answer `--prompt`. Returns the exit status."""
    from pathlib import Path

    from seesay.commands.chat.chat_loop import ChatLoop
    from seesay.commands.chat.editable_conversation import Attachment, Conversation

    conversation = Conversation(system=arguments.system)
    if arguments.load is not None:
        conversation.load(Path(arguments.load))
        conversation.system = arguments.system or conversation.system
    conversation.attached += [Attachment.read("image", source) for source in arguments.image]
    conversation.attached += [Attachment.read("video", source) for source in arguments.video]
    conversation.attached += [Attachment.read("audio", source) for source in arguments.audio]
    conversation.attached += [Attachment.read("document", source) for source in arguments.document]
    loop = ChatLoop(
        model,
        terminal,
        conversation,
        max_new_tokens=arguments.max_new_tokens,
        adapt=partial(adapt, parser=arguments.parser),
    )
    if arguments.prompt is None:
        return loop.run()
    loop.ask_once(_read_prompt(arguments.prompt, is_alone=not conversation.attached))
    return loop.status


def _read_prompt(given: str, *, is_alone: bool) -> str:
    """Return the text of `--prompt`. Raises `ConfigError` for one that is not text, or that is empty with no picture
    beside it."""
    text = sys.stdin.read() if given == "-" else given
    try:
        text = os.fsencode(text).decode()  # a locale other than UTF-8 hides characters of the command line
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt must be UTF-8 text, byte {error.start} is not") from None
    except UnicodeEncodeError:
        pass  # from standard input, in characters that the locale does not have
    text = text.strip()
    if not text and is_alone:
        where = "standard input" if given == "-" else "it"
        raise ConfigError(f"--prompt must be a question, {where} is empty")
    return text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    add_chat_options(parser)
    group = parser.add_argument_group("pictures and videos")
    options.add_media_options(group, max_bytes="256 MiB", max_pixels="179 million", max_items="1024")
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.commands.chat.answering import LocalModel
    from seesay.config import MediaLimits

    gen_config = options.make_generation_config(arguments)
    backend_config = engine_options.make_engine_config(arguments)
    template = engine_options.make_chat_template_config(arguments)
    terminal = open_terminal()
    terminal.aside(f"loading {arguments.model_path} ...")
    started = time.perf_counter()
    from seesay.offline.pipeline import pipeline

    with pipeline(
        arguments.model_path,
        backend_config,
        template,
        arguments.log_level,
        arguments.max_log_len,
        vision_config=engine_options.make_vision_config(arguments),
        media_limits=MediaLimits(**options.read_media_options(arguments)),
    ) as pipe:
        facts = pipe.engine.core.facts
        seconds = time.perf_counter() - started
        terminal.aside(f"ready after {seconds:.1f} s on {facts.device} in {facts.dtype}; /help lists the commands")
        return run_chat(arguments, LocalModel(pipe, gen_config), terminal)


COMMAND = Command(
    name="chat",
    summary="chat with a model about pictures and videos, in the terminal",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL]",
    examples=_EXAMPLES,
)
