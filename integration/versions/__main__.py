"""`python -m integration.versions [LINE ...] [--keep FOLDER]`: a fresh environment for each line of PySpark, and in it
the demo, a sink, compaction and clustering (`integration.versions.job`); prints a table, exits 1 when something failed.

With `--keep` environments stay in FOLDER, and those that are there are used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

from integration.jars import spark_jars

ROOT = Path(__file__).parents[2]
WANTED: Mapping[str, str] = {
    "3.5": ".[spark35]",
    "4.0": "pyspark[sql]==4.0.*",
    "4.1": "pyspark[sql]==4.1.*",
    "4.2": "pyspark[sql]==4.2.*",
    "4.3": "pyspark[sql]==4.3.*",
}
"""What pip is asked for beside icesize itself."""
ICEBERG = ("3.5", "4.0", "4.1")
"""Lines that Iceberg 1.11 has a Spark runtime for; on the others tables are written and read without it."""
STEPS = ("install", "demo", "sink", "append", "compact", "cluster", "rows")
_STEP_TIMEOUT_S = 1800


def tried(line: str, folder: Path) -> dict[str, str]:
    """What came of each step in the environment of one line: versions, "ok", or the last line of an error."""
    python = folder / f"spark-{line}" / "bin" / "python"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
    if failed := _failed([str(python), "-m", "pip", "install", "--quiet", ".", WANTED[line]]):
        return {"install": failed}
    demo = _failed([str(python), "-m", "icesize", "demo", "--path", tempfile.mkdtemp(dir=folder)])
    jars = [str(jar) for jar in spark_jars(line)] if line in ICEBERG else []
    job = [str(python), "-m", "integration.versions.job", tempfile.mkdtemp(dir=folder), *jars]
    done = _ran(job)
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"sink": _last(done)}
    return {"install": "ok", "demo": demo or "ok", **told}


def _failed(command: list[str]) -> str:
    """The last line of an error; empty when there was none."""
    done = _ran(command)
    return _last(done) if done.returncode else ""


def _ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_STEP_TIMEOUT_S)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def main(argv: list[str]) -> int:
    """Tries the lines one after the other."""
    parser = argparse.ArgumentParser(prog="python -m integration.versions")
    parser.add_argument("lines", nargs="*", default=list(WANTED), metavar="LINE", help=", ".join(WANTED))
    parser.add_argument("--keep", type=Path, help="make environments here, and use those that are there")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-versions-") as temporary:
        results = {line: tried(line, args.keep or Path(temporary)) for line in args.lines}
    for line, told in results.items():
        print(f"Spark {line}:", ", ".join(f"{key} {value}" for key, value in told.items()))
    return 0 if all(told.get(step) == "ok" for told in results.values() for step in STEPS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
