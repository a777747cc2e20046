"""Makes seesay importable in a Space, where pip cannot find a version that is not published.

A Space's requirements are installed before its files are there, so a wheel beside them cannot be one. It is installed
when the app starts instead: `seesay-*.whl` beside this file, else what the variable SEESAY_SOURCE names for pip (a
repository as git+https://…, or the URL of a wheel). What the package needs is in requirements.txt.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = "git+https://github.com/seesay/seesay"


def provide(package: str, *, folder: Path, source: str, target: Path) -> None:
    """Make `package` importable: as it is, from a wheel in `folder`, or from `source`. pip installs it into `target`.

    Ends the program when pip cannot, with what to do about it.
    """
    if importlib.util.find_spec(package) is not None:
        return
    wheels = sorted(folder.glob(f"{package}-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    requirement = str(wheels[-1]) if wheels else source
    print(f"installing {package} from {requirement}", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", str(target), requirement], check=False)
    if done.returncode:
        raise SystemExit(
            f"{package} cannot be installed from {requirement}: put a wheel of it beside app.py "
            "(`pip wheel --no-deps .` makes one), or set the variable SEESAY_SOURCE to what pip can install"
        )
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()


def provide_seesay() -> None:
    provide(
        "seesay",
        folder=FOLDER,
        source=os.environ.get("SEESAY_SOURCE", REPOSITORY),
        target=Path.home() / ".cache" / "seesay-space",
    )
