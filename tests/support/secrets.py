"""Planted secrets, a scanner for them, and storage whose keys end: what the tests of security share."""

from __future__ import annotations

import base64
import json
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.table import Table
from pyspark import cloudpickle

OF_CATALOG = {
    "token": "tok-9f3b71c2d8e4",
    "credential": "client-7:cre-51aa07be66f0",
    "header.Authorization": "Bearer hdr-c0ffee12ab34",
    "header.X-Api-Key": "api-44d1e6f0b2c8",
    "jdbc.password": "jdb-p&ss/5e1d90c3",
    "rest.secret-access-key": "sig-77aa1290ffee",
}
"""Properties that open a catalog, with values that are found wherever they get to."""

OF_STORAGE = {
    "s3.access-key-id": "AKIAPLANTED",
    "s3.secret-access-key": "sec/3c6e+08d5b1f7",
    "s3.session-token": "ses-a81f4420be95",
    "adls.account-key": "acc-19d2f7c6a0b4==",
}
"""Properties of storage: workers need them, and nobody may read them anywhere."""

_NO_SECRETS = {"s3.access-key-id"}


def secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """The part of each value that nobody may see, by the property it was planted in."""
    return {
        key: value.rpartition(" ")[2].rpartition(":")[2] for key, value in properties.items() if key not in _NO_SECRETS
    }


EVERY = secrets({**OF_CATALOG, **OF_STORAGE})


def leaks(text: str | bytes, secret_values: Mapping[str, str] = EVERY) -> list[str]:
    """Properties whose secrets are in the text, as they are, percent-encoded, or in base64."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    found = []
    for key, secret in secret_values.items():
        # of base64 only what does not depend on the bytes before and after
        coded = [base64.b64encode(b" " * shift + secret.encode())[4:-4] for shift in range(3)]
        if any(each in data for each in (secret.encode(), quote(secret, safe="").encode(), *coded)):
            found.append(key)
    return found


def printed(error: BaseException) -> str:
    """An error as Python prints it when nobody catches it, with everything that it is chained to."""
    return "".join(traceback.format_exception(error))


def pickled(value: object, secret_values: Mapping[str, str] = EVERY) -> list[str]:
    """Properties whose secrets a task would take along to another process."""
    return leaks(cloudpickle.dumps(value), secret_values)


def folder_leaks(folder: Path) -> dict[str, list[str]]:
    """Files below a folder whose name or content has a secret in it; of manifests only their headers are legible."""
    found = {}
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if bad := leaks(path.name) or leaks(content):
            found[path.name] = bad
    return found


def table_leaks(table: Table) -> list[str]:
    """Secrets in the metadata of a table: properties, summaries of snapshots, and what manifests list."""
    entries = table.inspect.all_files().drop_columns(["lower_bounds", "upper_bounds", "readable_metrics"]).to_pylist()
    manifests = table.inspect.all_manifests().to_pylist()
    return leaks(json.dumps([table.metadata.model_dump_json(), entries, manifests], default=str))


@dataclass
class KeyRing:
    """The keys that storage takes, and what was done by which; in files, as Spark's workers have to see it too.

    `vend` is what a catalog gives out at each load of a table: a new key, which ends those before the newest `valid`.
    `most` bounds how many files one key may create.
    """

    folder: Path
    valid: int = 1
    most: int | None = None
    issued: int = 0

    def vend(self) -> dict[str, str]:
        """The properties that go with a new key."""
        self.issued += 1
        newest = [f"key{n}" for n in range(max(1, self.issued - self.valid + 1), self.issued + 1)]
        self.folder.mkdir(exist_ok=True)
        new = self.folder / "new"
        new.write_text(json.dumps({"keys": newest, "most": self.most}))
        new.replace(self.folder / "valid")
        return {
            "py-io-impl": "tests.support.secrets.KeyedIO",
            "s3.access-key-id": f"key{self.issued}",
            "s3.secret-access-key": OF_STORAGE["s3.secret-access-key"],
            "keyring.folder": str(self.folder),
        }

    def done(self, verb: str = "", ending: str = "") -> list[tuple[str, str, str, int, list[str]]]:
        """What storage was asked for: verb, key, file name, process, and the names of the properties it came with."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        log = [tuple(json.loads(line)) for line in lines]
        return [each for each in log if each[0].startswith(verb) and each[2].endswith(ending)]  # type: ignore[misc]


def _claimed(path: Path) -> bool:
    """Whether this is the first to ask for it; tasks ask at the same time."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class KeyedIO(FsspecFileIO):
    """Local files, for those who have a key that is valid now."""

    def new_input(self, location: str) -> InputFile:
        self._check("read", location)
        return super().new_input(location)

    def new_output(self, location: str) -> OutputFile:
        self._check("create", location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._check("delete", str(getattr(location, "location", location)))
        super().delete(location)

    def _check(self, verb: str, location: str) -> None:
        folder, key = Path(self.properties["keyring.folder"]), self.properties["s3.access-key-id"]
        valid = json.loads((folder / "valid").read_text())
        names = sorted(self.properties)
        line = json.dumps([verb, key, location.rpartition("/")[2], os.getpid(), names])
        spent = False
        if verb == "create" and location.endswith(".parquet") and valid["most"] is not None:
            spent = not any(_claimed(folder / f"{key}-{n}") for n in range(valid["most"]))
        if key not in valid["keys"] or spent:
            secret = self.properties["s3.secret-access-key"]
            raise PermissionError(f"ExpiredToken: the key {key} with secret {secret} has ended")
        with (folder / "log").open("a") as log:
            log.write(line + "\n")
