"""Opens catalogs (by object, by PyIceberg's configuration, or from Spark's own settings) and the tables in them.

Spark's `spark.sql.catalog.<name>.*` and PyIceberg's properties mostly share their names; `pyiceberg_properties` maps
the rest, so that a user configures a catalog once. Properties can hold credentials: no message here prints a value
other than a catalog type.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from weakref import WeakValueDictionary

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataWrapper
from pyiceberg.utils.config import Config

from icesize.errors import EngineUnavailable, TableError, TableNotFound, UnsupportedTable
from icesize.redaction import is_secret, keys_with_secrets, remember_secrets
from icesize.storage.credentials import renew_by
from icesize.storage.table_storage import STORAGE, Storage
from icesize.table.catalog.access_errors import brief, may_pass
from icesize.table.catalog.branches import WAP_ID, has_wap
from icesize.table.catalog.hive import HIVE_4, LOCK_ENABLED, UNLOCKED, is_hive, is_hive_4
from icesize.table.catalog.pyiceberg_internals import http_adapters

LOG = logging.getLogger("icesize")

HTTP_TIMEOUT_SECONDS = 60.0
"""Seconds without a response after which a catalog call fails; PyIceberg 0.12 sets no limit."""

_TYPES = {"rest": "rest", "hive": "hive", "glue": "glue", "jdbc": "sql"}
_IMPLEMENTATIONS = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
    "org.apache.iceberg.nessie.NessieCatalog": "nessie",
}
_REFUSED = {
    "hadoop": "a path-based catalog has no atomic commit; use a REST, JDBC, Hive or Glue catalog",
    "nessie": "use Nessie's Iceberg REST endpoint: type=rest, uri=http(s)://HOST:PORT/iceberg",
}
_RENAMED = {
    "rest.access-key-id": "client.access-key-id",
    "rest.secret-access-key": "client.secret-access-key",
    "rest.session-token": "client.session-token",
    "client.assume-role.arn": "client.role-arn",
}
_MOST_TABLES = 10
"""Most tables of a namespace that a message lists if none has a similar name."""
_JAVA_ONLY = ("type", "catalog-impl", "io-impl", "cache-enabled", "default-namespace", "metrics-reporter-impl")


def pyiceberg_properties(name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the PyIceberg properties of Spark's catalog `name`, from Spark settings (`spark.sql.catalog.<name>.*`).

    Raises TableNotFound if Spark has no such catalog, and UnsupportedTable for catalog types that PyIceberg lacks.
    """
    prefix = f"spark.sql.catalog.{name}"
    if prefix not in conf:
        known = sorted({k.split(".")[3] for k in conf if k.startswith("spark.sql.catalog.") and k.count(".") >= 3})
        raise TableNotFound(
            f"Cannot open catalog '{name}': Spark has no setting '{prefix}'" + _nearest(name, known), catalog=name
        )
    spark = {k.removeprefix(prefix + "."): v for k, v in conf.items() if k.startswith(prefix + ".")}
    kind = _kind(name, spark)
    properties = {_RENAMED.get(k, k): v for k, v in spark.items() if k not in _JAVA_ONLY and not k.startswith("cache.")}
    properties["type"] = _TYPES[kind]
    _auth(name, properties)
    if kind == "jdbc":
        _jdbc(name, properties)
    if properties.pop("s3.path-style-access", "").lower() == "false":
        properties["s3.force-virtual-addressing"] = "true"
    return properties


def _kind(name: str, spark: Mapping[str, str]) -> str:
    implementation = spark.get("catalog-impl", "")
    kind = spark.get("type") or _IMPLEMENTATIONS.get(implementation, implementation) or "hive"
    if kind in _REFUSED:
        raise _unsupported_catalog(name, f"its type is '{kind}'; {_REFUSED[kind]}")
    if kind not in _TYPES:
        raise _unsupported_catalog(name, f"icesize does not support the type '{kind}'; pass {_OBJECT}")
    return kind


_OBJECT = "a PyIceberg catalog object (open(spark, name, catalog=...))"


def _unsupported_catalog(name: str, why: str) -> UnsupportedTable:
    return UnsupportedTable(f"Cannot open catalog '{name}': {why}", catalog=name)


def _auth(name: str, properties: dict[str, str]) -> None:
    """Apply `rest.auth.type` to `properties` in place: PyIceberg detects OAuth 2 and SigV4 by other properties."""
    kind = properties.pop("rest.auth.type", "oauth2").lower()
    if kind == "sigv4":
        properties["rest.sigv4-enabled"] = "true"
    elif kind not in ("oauth2", "none"):
        raise _unsupported_catalog(name, f"'rest.auth.type' is '{kind}'; pass {_OBJECT} made with its 'auth' property")


def _jdbc(name: str, properties: dict[str, str]) -> None:
    """Convert a JDBC URI to SQLAlchemy's, in place. Spark and PyIceberg then share one database and catalog name."""
    address, _, query = properties.get("uri", "").removeprefix("jdbc:").partition("?")
    driver = dict(parse_qsl(query, keep_blank_values=True))
    # Iceberg passes `jdbc.*` to the driver like parameters of the URI
    driver |= {k.removeprefix("jdbc."): properties.pop(k) for k in [*properties] if k.startswith("jdbc.")}
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite":
        properties["uri"] = f"sqlite:///{rest.removeprefix('file:')}"
        return
    user, password = driver.pop("user", ""), driver.pop("password", "")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    python = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
    known = dict(_driver_parameters(name, scheme, driver))
    ending = f"?{urlencode(known, quote_via=quote)}" if known else ""
    properties["uri"] = f"{python.get(scheme, scheme)}://{login}{rest.removeprefix('//')}{ending}"


_OF_LIBPQ = {
    "sslmode": "sslmode", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
    "connectTimeout": "connect_timeout", "ApplicationName": "application_name",
}  # fmt: skip
"""Parameters of PostgreSQL's JDBC driver, and their names in its C library."""


def _driver_parameters(name: str, scheme: str, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that the Python driver also has. Others tune Java's driver.

    Raises UnsupportedTable for encryption that would be lost.
    """
    for key, value in given.items():
        is_off = value.lower() in ("", "false", "disable", "disabled", "preferred")
        if scheme == "postgresql" and key == "currentSchema":
            yield "options", f"-csearch_path={value}"
        elif scheme == "postgresql" and key == "ssl":
            if not is_off and "sslmode" not in given:
                yield "sslmode", "verify-full"  # as the driver for Java does
        elif scheme == "postgresql" and key in _OF_LIBPQ:
            yield _OF_LIBPQ[key], value
        elif re.match("ssl" if scheme == "postgresql" else ".*(ssl|tls)", key, re.IGNORECASE) and not is_off:
            cannot = f"icesize cannot translate '{key}' of its JDBC URI for Python's driver"
            raise _unsupported_catalog(name, f"{cannot}; pass {_OBJECT}")


def is_configured(name: str) -> bool:
    """Return whether PyIceberg's own configuration (file and environment) has a catalog."""
    return bool(Config().get_catalog_config(name))


def open_configured(name: str, conf: Mapping[str, str]) -> Catalog:
    """Return a catalog from settings of Spark, or from PyIceberg's configuration if they do not have it.

    Raises what `pyiceberg_properties` and `open_catalog` raise.
    """
    return open_catalog(name, pyiceberg_properties(name, conf) if f"spark.sql.catalog.{name}" in conf else None)


def open_catalog(name: str, properties: Mapping[str, str] | None = None) -> Catalog:
    """Return a catalog by name, from the given properties or from PyIceberg's own configuration (file and environment).

    Raises TableNotFound if neither has the name, and TableError if the catalog cannot be opened.
    """
    try:
        # PyIceberg reads its configuration once, but a token in it can have been renewed since
        given: dict[str, Any] = {**(Config().get_catalog_config(name) or {}), **(properties or {})}
        remember_secrets(given)
        catalog = load_catalog(name, **given)
    except Exception as error:  # errors of PyIceberg, its HTTP client and its database driver have no common base
        if not properties and isinstance(error, ValueError):
            # PyIceberg reads each underscore in the name of a variable as a hyphen
            variable = "" if "_" in name else f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI, "
            raise TableNotFound(
                f"Cannot open catalog '{name}': neither Spark's settings nor PyIceberg's configuration name it "
                f"(.pyiceberg.yaml, {variable}or --catalog-uri)",
                catalog=name,
            ) from None
        reason = brief(error)
        for key, value in (properties or {}).items():
            reason = reason.replace(value, f"<{key}>") if key != "type" and len(value) > 3 else reason
        # not chained: the original text may hold a password
        raise TableError(f"Cannot open catalog '{name}': {reason}", catalog=name) from None
    return with_timeout(catalog)


@dataclass(frozen=True)
class CatalogProperties:
    """A catalog object as plain values, from which another process opens it again. It holds no credentials."""

    kind: type[Catalog]
    name: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, catalog: Catalog) -> CatalogProperties:
        """Return the values of a catalog. Raises EngineUnavailable, with the keys, if properties are credentials."""
        if secret := keys_with_secrets(catalog.properties):
            raise EngineUnavailable(
                f"Cannot send the catalog object '{catalog.name}' to another process: it holds credentials "
                f"({', '.join(sorted(secret))}), which would be in the plan of the query; configure the catalog where "
                f"the query runs, in Spark (spark.sql.catalog.{catalog.name}.*) or for PyIceberg, and open the table "
                f"by name (icesize.open(spark, '{catalog.name}.NAMESPACE.TABLE'))",
                catalog=catalog.name,
            )
        return cls(type(catalog), catalog.name, dict(catalog.properties))

    def open(self) -> Catalog:
        """Open the catalog in this process."""
        return with_timeout(self.kind(self.name, **self.properties))


def guard(catalog: Catalog) -> None:
    """Keep the catalog's credentials out of every text, and warn once if they are sent in the clear.

    They are if the catalog has some and its URI is `http://` with a host that is not this machine.
    """
    remember_secrets(catalog.properties)
    uri = str(catalog.properties.get("uri", ""))
    if not uri.startswith("http://"):
        return
    address = urlsplit(uri)
    sent = (key for key in catalog.properties if key.startswith(_SENT) and (is_secret(key) or key == "auth"))
    if (address.password is None and not any(sent)) or _is_loopback(address.hostname or ""):
        return
    _warn_of_http(catalog.name, str(address.hostname))


@lru_cache(maxsize=256)
def _warn_of_http(catalog: str, host: str) -> None:
    LOG.warning(
        "catalog '%s': credentials are sent to %s by http, which anybody on the way can read; use https", catalog, host
    )


_SENT = ("token", "credential", "header.", "auth")
"""Prefixes of properties that are sent to the catalog with each request; storage keys are not."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def with_timeout(catalog: Catalog, seconds: float = HTTP_TIMEOUT_SECONDS) -> Catalog:
    """Return the same catalog. Its HTTP calls (if it makes any) fail after `seconds` without a response."""
    for adapter in http_adapters(catalog):
        if not hasattr(adapter, "icesize_timeout"):
            adapter.send = _timed(adapter.send, seconds)
            adapter.icesize_timeout = seconds
    return catalog


def _timed(send: Any, seconds: float) -> Any:
    def with_default(request: Any, **options: Any) -> Any:
        options["timeout"] = options.get("timeout") or seconds
        return send(request, **options)

    return with_default


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Return `lake.db.events` as (`lake`, (`db`, `events`)). Raises TableNotFound for fewer than three parts."""
    parts = tuple(p.strip("`") for p in name.split("."))
    if len(parts) < 3 or not all(parts):
        raise TableNotFound(f"Cannot find table '{name}': expected CATALOG.NAMESPACE.TABLE", table=name)
    return parts[0], parts[1:]


OTHER_FORMAT = (NoSuchIcebergTableError, NoSuchPropertyException)
"""Errors for tables of Hive and Glue that lack the properties of Iceberg tables."""


def load_table(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    """Return the current state of a table.

    Raises TableNotFound (for a missing namespace or table, with similar names) and UnsupportedTable for a view, or for
    a column that PyIceberg cannot read.
    """
    try:
        return load_listed(catalog, identifier)
    except OTHER_FORMAT as error:
        name = ".".join((catalog.name, *identifier))
        raise _unsupported(name, f"it is not an Iceberg table ({brief(error)})") from error
    except NoSuchTableError as error:
        raise _not_found(catalog, identifier) from error


def with_storage(catalog: Catalog) -> Catalog:
    """Return a copy of a catalog, for one request, that reads and writes metadata files by `Storage`.

    A REST catalog is returned unchanged, because its server reads and writes them. So is one with a FileIO of its own,
    and one that is not PyIceberg's, which may hold more than a copy has.
    """
    is_pyicebergs = type(catalog).__module__.startswith("pyiceberg.") and isinstance(catalog, MetastoreCatalog)
    if not is_pyicebergs or PY_IO_IMPL in catalog.properties:
        return catalog
    changed = copy(catalog)
    vars(changed)["properties"] = {**catalog.properties, PY_IO_IMPL: STORAGE}
    return changed


def load_listed(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    """Return the current state of a table.

    Raises NoSuchTableError without looking for similar names, UnsupportedTable for a type or a format version that
    PyIceberg cannot read, and TableError for a damaged metadata file.
    """
    try:
        table = with_storage(catalog).load_table(identifier)
    except NoSuchTableError:
        raise
    except Exception as error:  # the errors of PyIceberg's parsers have no common base
        name = ".".join((catalog.name, *identifier))
        if is_hive_4(error):
            raise _unsupported(name, HIVE_4) from error
        for each in (error, error.__cause__, error.__context__):  # some of PyIceberg's parsers wrap it
            if isinstance(each, ValidationError) and (unreadable := _unreadable_metadata(name, each)) is not None:
                raise unreadable from None  # pydantic prints its input, which may be secret
        if str(error).startswith(("Could not parse", "Cannot deserialize")):  # a type, a default value
            raise _unsupported(name, f"PyIceberg cannot read a column: {error}") from error
        raise
    table.io = Storage.of(table.io)
    if isinstance(catalog, RestCatalog):
        renew_by(table.location(), table.io.properties, lambda: catalog.load_table(identifier).io.properties)
    table.metadata = shared_metadata(table.metadata_location, table.metadata)
    return table


def _unsupported(name: str, why: str) -> UnsupportedTable:
    return UnsupportedTable(f"Cannot open '{name}': {why}", table=name)


def _unreadable_metadata(name: str, error: ValidationError) -> TableError | None:
    """Return the error for a metadata file that is cut off, of another format version, or wrong in a field.

    None for a response of a server with other faults: it may be another one the next time.
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if "schemas" in first["loc"]:
        return _unsupported(name, f"PyIceberg cannot read '{where}' in its metadata: {first['msg']}")
    if error.title != TableMetadataWrapper.__name__:
        return None
    if first["type"] == "json_invalid":
        return TableError(f"Cannot open '{name}': its metadata file is cut off or damaged", table=name)
    if (version := first.get("ctx", {}).get("tag")) is not None:
        return _unsupported(name, f"its format version is {version}; PyIceberg reads versions 1 to 3")
    return TableError(f"Cannot open '{name}': PyIceberg cannot read '{where}' in its metadata", table=name)


_LOADED = WeakValueDictionary[str, TableMetadata]()


def shared_metadata(location: str | None, metadata: TableMetadata) -> TableMetadata:
    """Return the equal metadata that are still in use, or these: those of 70,000 snapshots take 280 MiB.

    No catalog writes a metadata file twice. But some respond without its location or with a part of its snapshots, and
    a table that is created in the place of a dropped one has another UUID.
    """
    if not location:
        return metadata
    known = _LOADED.get(location)
    if known is None or _identity(known) != _identity(metadata):
        _LOADED[location] = known = metadata
    return known


def _identity(metadata: TableMetadata) -> tuple[object, ...]:
    history = len(metadata.snapshots), len(metadata.snapshot_log), metadata.refs
    return metadata.table_uuid, metadata.last_updated_ms, metadata.current_snapshot_id, history, metadata.properties


def responds(catalog: Catalog) -> bool:
    """Return whether the catalog responds at all; a refusal is a response."""
    try:
        catalog.list_namespaces()
    except Exception as error:  # each catalog client raises its own errors
        return not may_pass(error)
    return True


def is_view(catalog: Catalog, identifier: tuple[str, ...]) -> bool:
    """Return True if the catalog has a view of this name."""
    with suppress(Exception):  # most catalogs have no views, and each raises its own error
        return bool(catalog.view_exists(identifier))
    return False


LOAD = (
    "the principal needs the right to load the table and to read and write its files (in Polaris TABLE_READ_DATA and "
    "TABLE_WRITE_DATA)"
)
LIST = "the principal needs the right to list namespaces and tables (in Polaris NAMESPACE_LIST and TABLE_LIST)"
"""Sentences about rights in a catalog."""


def load_failed(name: str, error: Exception) -> TableError:
    """Return the error for a table that could not be loaded, with the missing permission if that is the reason."""
    return TableError(f"Cannot load '{name}': {denied(error, LOAD)}", table=name)


def denied(error: Exception, right: str) -> str:
    """Return an error of a catalog in one line, with the sentence `right` if a missing right is the reason."""
    if is_hive_4(error):
        return HIVE_4
    if isinstance(error, ForbiddenError):
        return f"{brief(error)}; {right}"
    if isinstance(error, UnauthorizedError):
        return f"{brief(error)}; authentication failed: the token or credential is wrong or has expired"
    return brief(error)


def _not_found(catalog: Catalog, identifier: tuple[str, ...]) -> TableError:
    name = ".".join((catalog.name, *identifier))
    if is_view(catalog, identifier):
        return _unsupported(name, "it is a view; name the table under it")
    if _has_tables(catalog, identifier):
        return TableNotFound(f"Cannot find table '{name}': it is a namespace; '{name}.*' names its tables", table=name)
    try:
        known = [t[-1] for t in catalog.list_tables(identifier[:-1])]
    except NoSuchNamespaceError:
        namespace = ".".join(identifier[:-1])
        return TableNotFound(f"Cannot find table '{name}': there is no namespace '{namespace}'", table=name)
    except Exception:
        known = []  # a principal may have the right to load but not to list
    reason = _nearest(identifier[-1], known) or _some(identifier[:-1], known)
    return TableNotFound(f"Cannot find table '{name}'{reason}", table=name)


def _has_tables(catalog: Catalog, namespace: tuple[str, ...]) -> bool:
    with suppress(Exception):  # there is no such namespace, or a principal may have the right to load but not to list
        return bool(catalog.list_tables(namespace))
    return False


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _some(namespace: tuple[str, ...], known: list[str]) -> str:
    more = " and others" if len(known) > _MOST_TABLES else ""
    named = ", ".join(sorted(known)[:_MOST_TABLES])
    return f"; '{'.'.join(namespace)}' has {named}{more}" if known else ""


def check_supported(table: Table, spark_conf: Mapping[str, str] | None = None) -> None:
    """Raise UnsupportedTable, with one sentence, if the committer cannot write the table safely."""
    name = ".".join(table.name())
    if is_hive(table.catalog) and table.properties.get(LOCK_ENABLED, "true").lower() != "true":
        raise UnsupportedTable(f"Cannot work on '{name}': {UNLOCKED}", table=name)
    for why in _obstacles(table.metadata, spark_conf or {}):
        raise UnsupportedTable(f"Cannot work on '{name}': {why}", table=name)


def _obstacles(metadata: TableMetadata, spark_conf: Mapping[str, str]) -> Iterator[str]:
    if metadata.format_version > 3:
        yield f"its format version is {metadata.format_version}; icesize writes versions 1 to 3"
    if has_wap(metadata) and spark_conf.get(WAP_ID):
        staged = "'write.wap.enabled' is true, and the session sets 'spark.wap.id'"
        yield f"{staged}; set 'spark.wap.branch' to a branch instead"
    if metadata.properties.get("encryption.key-id"):
        yield "the table is encrypted ('encryption.key-id')"


def namespace_and_table(catalog: Catalog, name: str) -> tuple[str, ...]:
    """Return the identifier of a table in a given catalog. A leading catalog name is accepted."""
    parts = tuple(p.strip("`") for p in name.split("."))
    if len(parts) > 2 and parts[0] == catalog.name:
        parts = parts[1:]
    if len(parts) < 2 or not all(parts):
        raise TableNotFound(f"Cannot find table '{name}': expected NAMESPACE.TABLE", table=name)
    return parts
