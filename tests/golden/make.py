"""Make the numbers of a folder again, with the published code.

    python tests/golden/make.py NAME --code FOLDER --source 'github.com/owner/repository@commit' --date 2024-05-20

FOLDER holds the published files that the driver `drivers/NAME.py` names. The code in them is run. It needs the
Transformers of its time: the driver says which. A driver has

* `MODEL`: the id of the model on the hub; `FILES`: the published files that it runs; `TRANSFORMERS`: the release;
* `CASES`: what is asked (`cases.py`);
* `load(code, folder)`: returns the published model with sizes of `folder/config.json`, and the shapes of its tensors
  by their published names, filled by `formula.fill_model`;
* `run(model, case)`: returns a `record.Record`.

Imports neither seesay nor the tests: it runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "support")]

import torch  # noqa: E402
from golden import record  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--code", type=Path, required=True, help="folder of the published code")
    parser.add_argument("--source", required=True, help="where the files are from, with the commit")
    parser.add_argument("--date", required=True, help="date of that commit, or of the release")
    options = parser.parse_args()
    driver = importlib.import_module(f"golden.drivers.{options.name}")
    folder = HERE / options.name
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        model, tensors = driver.load(options.code, folder)
        records = {}
        for case in driver.CASES:
            records[case.name] = driver.run(model, case)
            print(f"{case.name}: {len(records[case.name].ids)} positions, answer {records[case.name].tokens}")
    import transformers

    origin = {
        "model": driver.MODEL,
        "source": options.source,
        "date": options.date,
        "files": {name: hashlib.sha256((options.code / name).read_bytes()).hexdigest() for name in driver.FILES},
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    record.write(folder, tensors=tensors, origin=origin, records=records)


if __name__ == "__main__":
    main()
