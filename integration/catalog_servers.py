"""Real catalog servers on free loopback ports: PostgreSQL, MariaDB, a Hive metastore and Nessie, with what each needs.

Maven fetches the two Java servers. A server that cannot be had raises `ServerUnavailableError`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import requests

from integration.object_store import ACCESS_KEY, SECRET_KEY, object_store
from integration.servers import free_ports, running

KEPT = Path(__file__).resolve().parent / "target" / "catalog-servers"
NESSIE = "org.projectnessie.nessie:nessie-quarkus:0.108.8:jar:runner"
HIVE = "org.apache.hive:hive-standalone-metastore:3.1.3:tar.gz:bin"
POSTGRESQL = "org.postgresql:postgresql:42.7.7"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_PASSWORD = "not-so-secret"
_SITE = {
    "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
    "javax.jdo.option.ConnectionUserName": "postgres",
    "javax.jdo.option.ConnectionPassword": _PASSWORD,
    "metastore.event.db.notification.api.auth": "false",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
}

Properties = Mapping[str, str]
"""Properties of a PyIceberg catalog."""


class ServerUnavailableError(RuntimeError):
    """A server is not installed here, and cannot be fetched."""


@contextmanager
def postgresql(folder: Path) -> Iterator[Properties]:
    """A SQL catalog in a database `lake` of a new PostgreSQL server, with its tables below `folder`."""
    with _database("lake") as port:
        uri = f"postgresql+psycopg2://postgres:{_PASSWORD}@127.0.0.1:{port}/lake"
        yield {"type": "sql", "uri": uri, "warehouse": folder.as_uri()}


@contextmanager
def mariadb(folder: Path) -> Iterator[Properties]:
    """A SQL catalog in a database of a new MariaDB server, with its tables below `folder`."""
    server, install = (shutil.which(name, path="/usr/bin:/usr/sbin") for name in ("mariadbd", "mariadb-install-db"))
    if server is None or install is None:
        raise ServerUnavailableError("MariaDB is not installed")
    user = ["--user=mysql"] if os.geteuid() == 0 else []  # the server does not run as root
    with tempfile.TemporaryDirectory(prefix="mariadb-") as home:
        if user:
            owner = pwd.getpwnam("mysql")
            os.chown(home, owner.pw_uid, owner.pw_gid)
        [port], place = free_ports(1), [*user, f"--datadir={home}/data"]
        subprocess.run([install, *place, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
        (Path(home) / "init.sql").write_text(
            f"create database lake;\ncreate user lake@localhost identified by '{_PASSWORD}';\n"
            "grant all on lake.* to lake@localhost;\n"
        )
        listen = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={home}/socket"]
        command = [server, "--no-defaults", *place, *listen, f"--init-file={home}/init.sql"]
        with running(command, folder / "mariadb.log", lambda: socket.create_connection(("127.0.0.1", port), 1).close()):
            uri = f"mysql+pymysql://lake:{_PASSWORD}@127.0.0.1:{port}/lake"
            yield {"type": "sql", "uri": uri, "warehouse": folder.as_uri()}


@contextmanager
def hive(folder: Path) -> Iterator[Properties]:
    """A Hive metastore 3.1 over PostgreSQL, with its tables below `folder`."""
    home, driver, [port] = _hive_home(), _fetched(POSTGRESQL), free_ports(1)
    with _database("hms") as database:
        address = f"jdbc:postgresql://127.0.0.1:{database}/hms"
        schema = home / "scripts/metastore/upgrade/postgres/hive-schema-3.1.0.postgres.sql"
        _psql(database, "-d", "hms", "-f", schema.name, folder=schema.parent)
        site = _SITE | {"javax.jdo.option.ConnectionURL": address, "metastore.warehouse.dir": folder.as_uri()}
        entries = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in site.items())
        (folder / "metastore-site.xml").write_text(f"<configuration>{entries}</configuration>")
        classpath = f"{folder}:{home}/lib/*:{driver}:{home}/hadoop/*"
        main = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", f"{port}"]
        command = ["java", "-Xmx512m", "-cp", classpath, *main]
        with running(command, folder / "hive.log", lambda: socket.create_connection(("127.0.0.1", port), 1).close()):
            yield {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", "warehouse": folder.as_uri()}


@contextmanager
def nessie(folder: Path) -> Iterator[Properties]:
    """Nessie with its tables in an S3 server."""
    java, jar, [port, management] = _java_21(), _fetched(NESSIE), free_ports(2)
    with object_store(folder) as store:
        store.client().create_bucket(Bucket="nessie")
        s3 = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": "127.0.0.1", "quarkus.http.port": port, "quarkus.management.port": management,
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "warehouse",
            "nessie.catalog.warehouses.warehouse.location": "s3://nessie/wh",
            f"{s3}.endpoint": f"{store.endpoint}/", f"{s3}.region": "us-east-1", f"{s3}.path-style-access": "true",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:keys", "keys.name": ACCESS_KEY, "keys.secret": SECRET_KEY,
        }  # fmt: skip
        command = [str(java), "-Xmx700m", *(f"-D{key}={value}" for key, value in settings.items()), "-jar", str(jar)]
        uri = f"http://127.0.0.1:{port}/iceberg"
        with running(command, folder / "nessie.log", lambda: requests.get(f"{uri}/v1/config", timeout=5)):
            yield {"type": "rest", "uri": uri, **store.properties()}


@contextmanager
def _database(name: str) -> Iterator[int]:
    """A PostgreSQL server with an empty database; yields its port."""
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if programs is None:
        raise ServerUnavailableError("PostgreSQL is not installed in /usr/lib/postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # the server does not run as root
    with ExitStack() as after:
        folder = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="postgresql-")))
        (folder / "password").write_text(_PASSWORD)
        if user:
            owner = pwd.getpwnam(user)
            for path in (folder, folder / "password"):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        [port], data = free_ports(1), folder / "data"
        make = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "md5", f"--pwfile={folder}/password"]
        subprocess.run(make, user=user, cwd=folder, check=True, capture_output=True)
        serve = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", f"-p {port} -k {folder} -F"]
        subprocess.run([*serve, "start"], user=user, cwd=folder, check=True, capture_output=True)
        stop = [programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"]
        after.callback(subprocess.run, stop, user=user, cwd=folder, check=True, capture_output=True)
        _psql(port, "-c", f"create database {name}")
        yield port


def _psql(port: int, *arguments: str, folder: Path | None = None) -> None:
    command = ["psql", "-q", "-h", "127.0.0.1", "-p", f"{port}", "-U", "postgres", *arguments]
    subprocess.run(command, env=os.environ | {"PGPASSWORD": _PASSWORD}, cwd=folder, check=True, capture_output=True)


def _hive_home() -> Path:
    """The folder of the metastore, with the jars of Hadoop in `hadoop`."""
    home = KEPT / "apache-hive-metastore-3.1.3-bin"
    if not (home / "hadoop").is_dir():
        with tarfile.open(_fetched(HIVE)) as archive:
            archive.extractall(KEPT, filter="data")
        pom = Path(__file__).resolve().parent / "hive-pom.xml"
        _mvn("-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={home}/hadoop.new")
        (home / "hadoop.new").rename(home / "hadoop")
    return home


def _java_21() -> Path:
    """The program of a Java 21 or newer."""
    for release in sorted(Path("/usr/lib/jvm").glob("*/release")):
        version = re.search(r'JAVA_VERSION="(\d+)', release.read_text())
        if version and int(version[1]) >= 21:
            return release.parent / "bin" / "java"
    raise ServerUnavailableError("Nessie needs Java 21 in /usr/lib/jvm")


def _fetched(artifact: str) -> Path:
    """The file of an artifact of Maven Central, fetched if it is not kept here."""
    _, name, version, *kind = artifact.split(":")
    ending = f"-{kind[1]}.{kind[0]}" if kind else ".jar"
    file = KEPT / f"{name}-{version}{ending}"
    if not file.is_file():
        _mvn(_COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={KEPT}")
    return file


def _mvn(*arguments: str) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ServerUnavailableError("Maven is not on PATH")
    done = subprocess.run([mvn, "-q", "-B", "-ntp", *arguments], capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise ServerUnavailableError(f"Maven cannot fetch it: {done.stdout.strip().splitlines()[:1]}")
