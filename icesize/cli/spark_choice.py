"""Options that select Spark: `--master`, `--remote` and `--conf`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from icesize.cli.values import pair_option
from icesize.errors import EngineUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master`, `--remote` and `--conf`, whose values become one SparkChoice named `spark`."""

    @click.option("--master", metavar="URL", help="Work with Spark at this master, such as `'local[*]'`.")
    @click.option("--remote", metavar="URL", help="Work with Spark Connect at this address, such as sc://host.")
    @pair_option("--conf", "A setting of the Spark session.")
    @wraps(command)
    def with_choice(*, master: str | None, remote: str | None, conf: Mapping[str, str], **options: Any) -> Any:
        if master and remote:
            raise click.UsageError("--master and --remote exclude each other")
        return command(spark=SparkChoice(master, remote, conf, options["as_json"]), **options)

    return with_choice


@dataclass(frozen=True)
class SparkChoice:
    """The Spark that a command line selects, if any.

    `conf` can hold credentials. If `silent` is true, the processes of Spark print nothing.
    """

    master: str | None
    remote: str | None
    conf: Mapping[str, str] = field(repr=False)
    silent: bool

    @property
    def is_wanted(self) -> bool:
        """True if the command line selects Spark."""
        return bool(self.master or self.remote or self.conf)

    @contextmanager
    def session(self, command: str) -> Iterator[SparkSession | None]:
        """Yield a session while the block runs, or None if no Spark is selected. Raises EngineUnavailable."""
        if not self.is_wanted:
            yield None
            return
        with _without_stderr() if self.silent else nullcontext():
            spark = self._start(command)
        try:
            yield spark
        finally:
            spark.stop()

    def _start(self, command: str) -> SparkSession:
        from icesize.spark.engine.launch import start_session

        try:
            return start_session(f"icesize {command}", master=self.master, remote=self.remote, conf=self.conf)
        except EngineUnavailable as error:
            raise EngineUnavailable(
                f"{error}. Without Spark `icesize {command}` works in its own process, and so does every other command "
                "(leave out --master, --remote and --conf)"
            ) from error


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Silence the standard error of processes started in the block; their errors still arrive as exceptions."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
