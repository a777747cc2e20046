"""Judges VLMEvalKit's predictions as the package's own evaluation does: `python judging.py seesay_seesay_scenes.json`.

VLMEvalKit asks about a table of one's own, and leaves the judging to its owner. `PRED_FORMAT=json` has it write the
predictions as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seesay.demo.checking import is_right
from seesay.demo.scenes import make_example


def main() -> None:
    answers = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    right = [is_right(make_example(row["task"], int(row["seed"])), str(row["prediction"])) for row in answers]
    print(json.dumps({"questions": len(right), "right": sum(right) / len(right)}))


if __name__ == "__main__":
    main()
