"""The program of the process that tries a tokenizer.json: it loads the file and uses it, under limits of the operating
system. It runs as a script, and imports the standard library and tokenizers only.

Its argument is JSON: file, sys_path, memory_bytes, cpu_s.
"""

from __future__ import annotations

import json
import os
import resource
import sys

_TEXTS = ("a", "The quick brown fox\n jumps over 13 dogs. ", "äöü 你好 🙂\t  ", "<s> [INST] {}()[]'\"\\/", "a" * 256)


def main() -> None:
    settings = json.loads(sys.argv[1])
    sys.path += [path for path in settings["sys_path"] if path not in sys.path]
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    import tokenizers

    for kind, most in (
        (resource.RLIMIT_AS, settings["memory_bytes"]),
        (resource.RLIMIT_CPU, settings["cpu_s"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    backend = tokenizers.Tokenizer.from_file(settings["file"])
    for text in _TEXTS:
        ids = backend.encode(text).ids
        backend.decode(ids[:1000], skip_special_tokens=False)
    os._exit(0)  # without freeing a vocabulary piece by piece


if __name__ == "__main__":
    main()
