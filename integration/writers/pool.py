"""Files of each writer, made once for a run by the Python that has it, and the files that are checked in."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from integration.writers.rows import FLAT, NESTED, SCHEMA, arrow_types, make_rows

CACHE = "ICESIZE_WRITERS_CACHE"
"""Names the folder of the Pythons that have other writers; they are made when they are missing."""
FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "writers"
_CHILD = Path(__file__).with_name("write_files.py")
_OLDER = ("10.0.1", "12.0.1", "14.0.2", "17.0.0", "21.0.0")
NEEDED: Mapping[str, Sequence[str]] = {
    **{
        f"pyarrow-{v.split('.')[0]}": (f"pyarrow=={v}", "numpy<2")
        for v in ("10.0.1", "12.0.1", "14.0.2", "17.0.0", "21.0.0")
    },
    "arrow-rs": ("arro3-io", "arro3-core", "pyarrow"),
    "fastparquet": ("fastparquet", "pyarrow"),
    "chdb": ("chdb", "pyarrow"),
}
"""Writers that the development environment lacks, and what a Python needs to have them."""
_LIBRARY = {"arrow-rs": "arro3"}
HERE = ("pyarrow", "duckdb", "polars")
"""Writers of the development environment, beside Spark's."""
EMPTY: Mapping[str, str] = {"iceberg-go": "no program writes files with it here"}
"""Writers without files, and why."""
_ENCODINGS: Mapping[str, Sequence[str]] = {
    "pyarrow": ("plain", "dictionary", "fallback", "delta", "split"),
    "arrow-rs": ("plain", "dictionary", "fallback"),
    "duckdb": ("plain", "dictionary"),
    "chdb": ("plain", "dictionary", "fallback"),
}
_CODECS: Mapping[str, Sequence[str]] = {
    "fastparquet": ("none", "snappy", "gzip", "zstd", "brotli"),
    "chdb": ("none", "snappy", "gzip", "zstd", "brotli", "lz4"),
}
_ALL_CODECS = ("zstd", "zstd", "zstd", "none", "snappy", "gzip", "brotli", "lz4")
_IDS: Mapping[str, Sequence[str]] = {
    "pyarrow": ("nowhere", "everywhere", "everywhere", "everywhere", "partly"),
    "arrow-rs": ("nowhere", "everywhere", "everywhere", "everywhere", "partly"),
    "duckdb": ("nowhere", "everywhere", "everywhere"),
}
"""Copying needs field ids in the files."""
_LACKING: Mapping[str, Sequence[str]] = {"fastparquet": ("day", "money"), "chdb": ("raw",)}
"""Columns that a writer cannot write as the table has them: fastparquet fails for dates and stores decimals as doubles,
chDB marks all bytes as UTF-8, which these are not, so that no reader takes them."""
_MOST_KEPT_BYTES = 12_000
"""Larger files are not checked in."""
_ROW_COUNTS = (1, 30, 150, 300, 900)
_ALIKE = 3
"""Files that follow each other and differ in their rows only: of such ones bytes are copied."""
_LARGE: Mapping[int, int] = {4: 20_000, 9: 100_000, 14: 20_000}
"""Rows of some files of writers with field ids: by default limits their pages and row groups are copied."""
_HARDLY_COMPRESSED = ("id", "many", "number", "at")
MANY_ROWS = 20_000


@dataclass(frozen=True)
class Made:
    """One file, and how it was asked for."""

    name: str
    path: str
    writer: str
    encoding: str
    codec: str
    pages: str
    ids: str
    columns: tuple[str, ...]
    rows: int

    @property
    def form(self) -> tuple[object, ...]:
        """What files have in common of which bytes can be copied together."""
        return self.writer, self.encoding, self.codec, self.pages, self.ids, self.columns


def family(writer: str) -> str:
    """Return the library of a writer without its version."""
    return "pyarrow" if writer.startswith("pyarrow") else writer


def make_pool(folder: Path, writers: Iterable[str], seed: int, each: int) -> tuple[list[Made], dict[str, str]]:
    """Make `each` files per writer. Returns them, and for writers without files the reason."""
    made, missing = list[Made](), dict[str, str]()
    for writer in writers:
        try:
            python = _python(writer)
        except (OSError, subprocess.SubprocessError) as error:
            missing[writer] = f"its Python cannot be made: {str(error)[:200]}"
            continue
        jobs = [_job(folder, writer, seed, n) for n in range(each)]
        failed = _written(python, jobs)
        made += [_made(job) for job in jobs if job["out"] not in failed]
        for job in jobs:
            Path(job["rows"]).unlink()
        if len(failed) == each:
            missing[writer] = next(iter(failed.values()))
        elif failed:
            print(f"{writer}: {len(failed)} of {each} files were not written: {sorted(set(failed.values()))[:3]}")
    return made, missing


def checked_in() -> list[Made]:
    """Return the files of other writers that are checked in, with how they were made."""
    described = json.loads((FIXTURES / "files.json").read_text())
    return [
        Made(**{**each, "path": str(FIXTURES / each["path"]), "columns": tuple(each["columns"])}) for each in described
    ]


def check_in(seed: int, each: int) -> None:
    """Make the files that are checked in again, a few small ones of each writer."""
    made, missing = make_pool(FIXTURES, NEEDED, seed, each)
    kept = [file for file in made if Path(file.path).stat().st_size <= _MOST_KEPT_BYTES]
    for file in set(made) - set(kept):
        Path(file.path).unlink()
    described = [{**asdict(file), "path": Path(file.path).name} for file in kept]
    (FIXTURES / "files.json").write_text(json.dumps(described, indent=1) + "\n")
    print(f"{len(kept)} files, missing: {missing}")


def all_ids() -> dict[str, int]:
    """Return the field id of each column and field, by their paths in Parquet files."""
    names = dict[int, str]()
    for name, field_id in SCHEMA._name_to_id.items():  # of a list's fields both `a.x` and `a.element.x`
        names[field_id] = max(names.get(field_id, ""), name, key=len)
    return {name: field_id for field_id, name in names.items()}


def _python(writer: str) -> str:
    """The Python that has the writer, made when it is missing."""
    if writer in HERE:
        return sys.executable
    cache = Path(os.environ.get(CACHE) or Path(__file__).parents[1] / "target" / "writers")
    folder = cache / writer
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDED[writer]]
        subprocess.run(install, check=True, timeout=900)
        (folder / "ready").touch()
    return str(python)


def _job(folder: Path, writer: str, seed: int, number: int) -> dict[str, Any]:
    form, name = number // _ALIKE, f"{writer}-{seed}-{number}"
    chance = random.Random(f"{writer}-{seed}-{form}")
    kind = family(writer)
    encodings = _ENCODINGS.get(kind, ("dictionary",))
    large = _LARGE.get(form) if kind in _IDS else None
    count = large or random.Random(name).choice(_ROW_COUNTS)
    columns = _HARDLY_COMPRESSED if large else _columns(kind, chance)
    is_arrow = kind in ("pyarrow", "arrow-rs")
    types = arrow_types(fixed=is_arrow and chance.random() < 0.4, category=is_arrow and chance.random() < 0.3)
    nulls, few = chance.choice((0.0, 0.1, 0.1, 0.6)), chance.choice((1, 4, 60))
    rows = make_rows(name, count, columns, nulls, few, types)
    path = folder / f"{name}.arrow"
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return {
        "library": _LIBRARY.get(kind, kind),
        "writer": writer,
        "name": name,
        "rows": str(path),
        "out": str(folder / f"{name}.parquet"),
        "count": count,
        "encoding": encodings[form % len(encodings)],
        "codec": chance.choice(_CODECS.get(kind, _ALL_CODECS)),
        "pages": chance.choice(("1.0", "2.0")),
        "group_rows": 10**6 if large else chance.choice((100, 700, 10**6)),
        "store_schema": chance.random() < 0.5,
        "ids": "everywhere" if large else chance.choice(_IDS.get(kind, ("nowhere",))),
        "columns": columns,
        "all_ids": all_ids(),
    }


def _columns(kind: str, chance: random.Random) -> tuple[str, ...]:
    columns = (*FLAT, *NESTED) if kind != "fastparquet" and chance.random() < 0.5 else FLAT
    if chance.random() < 0.15:
        columns = tuple(c for c in columns if c == "id" or chance.random() < 0.7)
    elif chance.random() < 0.7:  # decimals have a form of their own in the files of many writers
        columns = tuple(c for c in columns if c != "money")
    return tuple(c for c in columns if c not in _LACKING.get(kind, ()))


def _written(python: str, jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Write the files; returns why some could not be, by their paths."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(_CHILD)], input=lines, capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = {answer["out"]: answer["error"] for answer in answers if "error" in answer}
    silent = {job["out"] for job in jobs} - {answer["out"] for answer in answers}
    return failed | dict.fromkeys(silent, f"its process ended: {done.stderr[-200:]}")


def _made(job: Mapping[str, Any]) -> Made:
    rows = pq.read_metadata(job["out"]).num_rows
    has = ("name", "writer", "encoding", "codec", "pages", "ids", "columns")
    return Made(path=job["out"], rows=rows, **{key: job[key] for key in has})
