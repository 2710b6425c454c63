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

from integration.writers.rows import FLAT, NESTED, SCHEMA, arrow_types, make_rows, metadata_of

CACHE = "ICESIZE_WRITERS_CACHE"
"""Names the folder of the Pythons that have other writers; they are made when they are missing."""
FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "writers"
_CHILD = Path(__file__).with_name("write_files.py")
_GO = Path(__file__).with_name("go")
NEEDED: Mapping[str, Sequence[str]] = {
    **{
        f"pyarrow-{v.split('.')[0]}": (f"pyarrow=={v}", "numpy<2")
        for v in ("10.0.1", "12.0.1", "14.0.2", "17.0.0", "21.0.0")
    },
    "arrow-rs": ("arro3-io", "arro3-core", "pyarrow"),
    "fastparquet": ("fastparquet", "pyarrow"),
    "chdb": ("chdb", "pyarrow"),
    "iceberg-go": (),
}
"""Writers that the development environment lacks, and what a Python needs to have them; one is a program in Go."""
_LIBRARY = {"arrow-rs": "arro3"}
HERE = ("pyarrow", "duckdb", "polars")
"""Writers of the development environment, beside Spark's."""
_ENCODINGS: Mapping[str, Sequence[str]] = {
    "pyarrow": ("plain", "dictionary", "fallback", "delta", "split"),
    "arrow-rs": ("plain", "dictionary", "fallback"),
    "duckdb": ("plain", "dictionary"),
    "chdb": ("plain", "dictionary", "fallback"),
    "iceberg-go": ("plain", "dictionary", "fallback"),
}
_CODECS: Mapping[str, Sequence[str]] = {
    "fastparquet": ("none", "snappy", "gzip", "zstd", "brotli"),
    "chdb": ("none", "snappy", "gzip", "zstd", "brotli", "lz4"),
}
_ALL_CODECS = ("zstd", "zstd", "zstd", "none", "snappy", "gzip", "brotli", "lz4")
_IDS: Mapping[str, Sequence[str]] = {
    "pyarrow": ("everywhere", "nowhere", "everywhere", "partly"),
    "arrow-rs": ("everywhere", "nowhere", "everywhere", "partly"),
    "duckdb": ("everywhere", "nowhere", "everywhere"),
    "iceberg-go": ("everywhere",),
}
"""In turn for the forms of an encoding: copying needs field ids in the files."""
_LACKING: Mapping[str, Sequence[str]] = {"fastparquet": ("day", "money"), "chdb": ("raw",)}
"""Columns that a writer cannot write as the table has them: fastparquet fails for dates and stores decimals as doubles,
chDB marks all bytes as UTF-8, which these are not, so that no reader takes them."""
_MOST_KEPT_BYTES = 12_000
"""Larger files are not checked in."""
_ROW_COUNTS = (1, 20, 60, 120, 300)
ALIKE = 3
"""Files that follow each other and differ in their rows only: of such ones bytes are copied."""
_LARGE: Mapping[int, int] = {7: 20_000, 11: 100_000, 18: 20_000}
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
            command = _command(writer)
        except (OSError, subprocess.SubprocessError) as error:
            missing[writer] = f"it cannot be made: {str(error)[:200]}"
            continue
        jobs = [_job(folder, writer, seed, n) for n in range(each)]
        failed = _written(command, jobs)
        made += [_made(job) for job in jobs if job["out"] not in failed]
        for job in jobs:
            Path(job["rows"]).unlink()
        written = {job["encoding"] for job in jobs if job["out"] not in failed}
        for job in jobs:
            if job["encoding"] not in written:
                missing[f"{writer}/{job['encoding']}" if written else writer] = failed[job["out"]]
        if written and failed:
            print(f"{writer}: {len(failed)} of {each} files were not written: {sorted(set(failed.values()))[:3]}")
    return made, missing


def checked_in() -> list[Made]:
    """Return the files of other writers that are checked in, with how they were made."""
    described = json.loads((FIXTURES / "files.json").read_text())
    return [
        Made(**{**each, "path": str(FIXTURES / each["path"]), "columns": tuple(each["columns"])}) for each in described
    ]


def check_in(writers: Sequence[str], seed: int, each: int) -> None:
    """Make the files that are checked in of these writers again, a few small ones of each."""
    before = [file for file in checked_in() if file.writer in writers]
    for file in before:
        Path(file.path).unlink()
    others = [file for file in checked_in() if file not in before]
    made, missing = make_pool(FIXTURES, writers, seed, each)
    kept = [file for file in made if Path(file.path).stat().st_size <= _MOST_KEPT_BYTES]
    for file in set(made) - set(kept):
        Path(file.path).unlink()
    # the names differ from those of files that a run makes of the same seed
    described = [asdict(file) for file in others] + [{**asdict(file), "name": f"kept-{file.name}"} for file in kept]
    for each in described:
        each["path"] = Path(each["path"]).name
    (FIXTURES / "files.json").write_text(json.dumps(described, indent=1) + "\n")
    print(f"{len(kept)} files, missing: {missing}")


def all_ids() -> dict[str, int]:
    """Return the field id of each column and field, by their paths in Parquet files."""
    names = dict[int, str]()
    for name, field_id in SCHEMA._name_to_id.items():  # of a list's fields both `a.x` and `a.element.x`
        names[field_id] = max(names.get(field_id, ""), name, key=len)
    return {name: field_id for field_id, name in names.items()}


def _command(writer: str) -> list[str]:
    """What runs the jobs of a writer; its Python or its program is made when it is missing."""
    if writer in HERE:
        return [sys.executable, str(_CHILD)]
    folder = Path(os.environ.get(CACHE) or Path(__file__).parents[1] / "target" / "writers") / writer
    program, python = folder / "write_files", folder / "bin" / "python"
    if not (folder / "ready").exists():
        if writer == "iceberg-go":
            subprocess.run(["go", "build", "-o", str(program), "."], cwd=_GO, check=True, timeout=1_800)
        else:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
            install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDED[writer]]
            subprocess.run(install, check=True, timeout=900)
        (folder / "ready").touch()
    return [str(program)] if writer == "iceberg-go" else [str(python), str(_CHILD)]


def _job(folder: Path, writer: str, seed: int, number: int) -> dict[str, Any]:
    form, name = number // ALIKE, f"{writer}-{seed}-{number}"
    chance = random.Random(f"{writer}-{seed}-{form}")
    kind = family(writer)
    encodings, ids = _ENCODINGS.get(kind, ("dictionary",)), _IDS.get(kind, ("nowhere",))
    large = _LARGE.get(form) if kind in _IDS else None
    count = large or random.Random(name).choice(_ROW_COUNTS)
    turn = form // len(encodings)
    is_common = kind in _IDS and turn % 3 != 1  # bytes of such files can be copied together, whoever wrote them
    columns = _HARDLY_COMPRESSED if large else _columns(writer, chance, is_common)
    is_arrow = kind in ("pyarrow", "arrow-rs")
    types = arrow_types(fixed=is_arrow and chance.random() < 0.4, category=is_arrow and chance.random() < 0.3)
    nulls, few = chance.choice((0.0, 0.1, 0.1, 0.6)), chance.choice((1, 4, 60))
    rows = make_rows(name, count, columns, nulls, few, types)
    path = folder / f"{name}.arrow"
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    job = {
        "library": _LIBRARY.get(kind, kind),
        "writer": writer,
        "name": name,
        "rows": str(path),
        "out": str(folder / f"{name}.parquet"),
        "count": count,
        "encoding": encodings[form % len(encodings)],
        "codec": "zstd" if is_common and chance.random() < 0.6 else chance.choice(_CODECS.get(kind, _ALL_CODECS)),
        "pages": chance.choice(("1.0", "2.0")),
        "group_rows": 10**6 if large else chance.choice((50, 200, 10**6)),
        "small_pages": chance.random() < 0.4,
        "store_schema": chance.random() < 0.5,
        "ids": "everywhere" if large else ids[turn % len(ids)],
        "columns": columns,
        "all_ids": all_ids(),
    }
    return {**job, "metadata": _go_metadata(job)} if writer == "iceberg-go" else job


def _go_metadata(job: Mapping[str, Any]) -> str:
    """The metadata of the table for which iceberg-go writes: its properties say what is asked for."""
    properties = {
        "write.parquet.compression-codec": {"none": "uncompressed", "lz4": "lz4raw"}.get(job["codec"], job["codec"]),
        "write.parquet.page-version": job["pages"][:1],
        "write.parquet.row-group-limit": str(job["group_rows"]),
        "parquet.enable.dictionary": str(job["encoding"] != "plain").lower(),
    }
    if job["encoding"] == "fallback" or job["small_pages"]:
        properties |= {"write.parquet.page-row-limit": "20", "write.parquet.page-size-bytes": "200"}
    if job["encoding"] == "fallback":
        properties["write.parquet.dict-size-bytes"] = "256"
    return metadata_of(job["columns"], job["out"] + ".table", properties)


def _columns(writer: str, chance: random.Random, is_common: bool) -> tuple[str, ...]:
    # pyarrow 10 writes no field ids of lists, maps and structs
    is_flat = writer == "fastparquet" or (writer == "pyarrow-10" and is_common) or chance.random() < 0.5
    columns = FLAT if is_flat else (*FLAT, *NESTED)
    if not is_common and chance.random() < 0.3:
        columns = tuple(c for c in columns if c == "id" or chance.random() < 0.7)
    elif is_common or chance.random() < 0.4:  # decimals have a form of their own in the files of many writers
        columns = tuple(c for c in columns if c != "money")
    return tuple(c for c in columns if c not in _LACKING.get(writer, ()))


def _written(command: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Write the files; returns why some could not be, by their paths."""
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = {answer["out"]: answer["error"] for answer in answers if "error" in answer}
    silent = {job["out"] for job in jobs} - {answer["out"] for answer in answers}
    return failed | dict.fromkeys(silent, f"its process ended: {done.stderr[-200:]}")


def _made(job: Mapping[str, Any]) -> Made:
    rows = pq.read_metadata(job["out"]).num_rows
    has = ("name", "writer", "encoding", "codec", "pages", "ids", "columns")
    return Made(path=job["out"], rows=rows, **{key: job[key] for key in has})
