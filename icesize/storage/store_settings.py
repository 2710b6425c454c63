"""The settings of an object store's client, from PyIceberg's properties.

PyIceberg's own FileIO is the fallback for each property, and each source of credentials, without an exact counterpart.
The reason is a sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from icesize.storage.locations import split

CONNECT_SECONDS = "10s"
STALL_SECONDS = "60s"
"""The time without a byte of an answer after which a request fails, and is repeated."""
REQUEST_SECONDS = "600s"
"""The longest time of a request with its body: 64 MiB at 110 kB/s."""

S3 = {
    "s3.access-key-id": "access_key_id", "client.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key", "client.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token", "client.session-token": "session_token",
    "s3.region": "region", "client.region": "region", "s3.endpoint": "endpoint", "s3.anonymous": "skip_signature",
    "s3.proxy-uri": "proxy_url", "s3.connect-timeout": "connect_timeout", "s3.request-timeout": "read_timeout",
    "s3.force-virtual-addressing": "virtual_hosted_style_request",
    "s3.resolve-region": "(`true`: the client looks up the region of the bucket)",
    "s3.path-style-access": "(no influence: `s3.force-virtual-addressing` selects the style)",
    "s3.remote-signing-enabled": "(`true`: PyIceberg's FileIO)", "client.factory": "(no influence)",
    "s3.session-token-expires-at-ms": "(time of renewal)", "client.refresh-credentials-endpoint": "(no influence)",
}  # fmt: skip
GCS = {
    "gcs.oauth2.token": "bearer_token", "gcs.service.host": "base_url",
    "gcs.oauth2.token-expires-at": "(time of renewal)", "gcs.oauth2.refresh-credentials-endpoint": "(no influence)",
    "gcs.default-bucket-location": "(no influence)", "gcs.project-id": "(no influence)",
}  # fmt: skip
AZURE = {
    "adls.account-name": "account_name", "adls.account-key": "account_key", "adls.sas-token": "sas_key",
    "adls.tenant-id": "tenant_id", "adls.client-id": "client_id", "adls.client-secret": "client_secret",
    "adls.blob-storage-authority": "(part of `endpoint`)", "adls.blob-storage-scheme": "(part of `endpoint`)",
    "adls.dfs-storage-authority": "(no influence)", "adls.dfs-storage-scheme": "(no influence)",
    "adls.sas-token-expires-at-ms": "(time of renewal)", "adls.refresh-credentials-endpoint": "(no influence)",
}  # fmt: skip
"""PyIceberg's properties with their settings of the client, or a note in parentheses. The first of two names wins."""
GOOGLE = "googleapis.com"
Config = dict[str, str | bool]
_CLIENT = frozenset({"proxy_url", "connect_timeout", "read_timeout"})
_EXPIRES = {"s3": "s3.session-token-expires-at-ms", "gs": "gcs.oauth2.token-expires-at"}
_OF_ACCOUNTS = ("adls.sas-token.", "adls.sas-token-expires-at-ms.")
_SECONDS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class StoreSettings:
    """A bucket or container, with the settings of its client as pairs.

    They hold credentials: never print them. These expire at `expires_ms`, if the catalog knows that.
    """

    kind: str
    container: str
    config: tuple[tuple[str, str | bool], ...]
    client: tuple[tuple[str, str | bool], ...]
    expires_ms: int | None = None

    def __repr__(self) -> str:
        return f"StoreSettings({self.kind}, {self.container})"


def store_settings(location: str, properties: Mapping[str, str]) -> StoreSettings | str:
    """Return the settings of the store of a location, or the reason why only PyIceberg's FileIO can reach it.

    `properties` are those of the table's FileIO. The variables of the process can hold credentials for S3, and the
    user's directory profiles.
    """
    scheme, authority, _ = split(location)
    if "py-io-impl" in properties:
        return f"'py-io-impl' is {properties['py-io-impl']}"
    build = {"s3": _s3, "gs": _gs, "abfs": _azure, "wasb": _azure}.get(scheme)
    if build is None or not authority:
        return f"the scheme '{scheme}' has no client"
    try:
        config, container = build(authority, properties)
    except _UnmappedError as unmapped:
        return str(unmapped)
    client: Config = {"connect_timeout": CONNECT_SECONDS, "read_timeout": STALL_SECONDS, "timeout": REQUEST_SECONDS}
    client |= {key: str(config.pop(key)) for key in _CLIENT & config.keys()}
    plain_http = any(str(config.get(key, "")).startswith("http:") for key in ("endpoint", "base_url"))
    pairs = (*client.items(), ("allow_http", plain_http))
    key = _EXPIRES.get(scheme, "adls.sas-token-expires-at-ms")
    expires = str(properties.get(f"{key}.{authority.rpartition('@')[2]}", properties.get(key)))
    expires_ms = int(expires) if expires.isdecimal() else None
    return StoreSettings(scheme, container, tuple(sorted(config.items())), pairs, expires_ms)


class _UnmappedError(Exception):
    """A property, or a source of credentials, that the client lacks."""


def _mapped(properties: Mapping[str, str], names: Mapping[str, str], prefixes: tuple[str, ...]) -> Config:
    for key in properties:
        if key.startswith(prefixes) and key not in names:
            raise _UnmappedError(f"'{key}' has no counterpart in the client")
    config: Config = {}
    for key, name in names.items():
        if not name.startswith("(") and properties.get(key) is not None:
            config.setdefault(name, properties[key])
    return config


def _s3(bucket: str, properties: Mapping[str, str]) -> tuple[Config, str]:
    config = _mapped(properties, S3, ("s3.", "client."))
    if str(properties.get("s3.remote-signing-enabled")).lower() == "true":
        raise _UnmappedError("the catalog signs the requests ('s3.remote-signing-enabled')")
    for flag in ("skip_signature", "virtual_hosted_style_request"):
        if flag in config:
            config[flag] = str(config[flag]).lower() in ("true", "t", "1", "yes", "y", "on")
    for name in ("connect_timeout", "read_timeout"):
        if name in config:
            if not _SECONDS.fullmatch(str(config[name])):
                raise _UnmappedError(f"'{config[name]}' is no number of seconds")
            config[name] = f"{round(float(config[name]) * 1000)}ms"
    if "access_key_id" not in config and not config.get("skip_signature"):
        _check_credentials()
    endpoint = config.get("endpoint")
    if endpoint is None and ("region" not in config or str(properties.get("s3.resolve-region")).lower() == "true"):
        config |= {"region": found} if (found := _region_of(bucket)) else {}
    if endpoint is not None:
        address = str(endpoint) if "://" in str(endpoint) else f"https://{endpoint}"
        scheme, host = urlsplit(address)[:2]
        named = f"{scheme}://{bucket}.{host}" if config.get("virtual_hosted_style_request") else address
        config["endpoint"] = named.rstrip("/")
    return config, bucket


def _check_credentials() -> None:
    """Raise unless the client finds the same credentials as PyArrow: it has no profiles."""
    own = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
           "AWS_CONTAINER_CREDENTIALS_FULL_URI")  # fmt: skip
    profiles = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
    has_profile = any(os.environ.get(name) for name in profiles) or (Path.home() / ".aws").exists()
    if has_profile and not any(os.environ.get(name) for name in own):
        raise _UnmappedError("its credentials come from a profile")


@lru_cache
def _region_of(bucket: str) -> str | None:
    """Return the region of a bucket at AWS, as PyIceberg finds it; None if AWS does not name it."""
    from pyarrow.fs import resolve_s3_region

    try:
        return str(resolve_s3_region(bucket))
    except OSError:
        return None


def _gs(bucket: str, properties: Mapping[str, str]) -> tuple[Config, str]:
    config = _mapped(properties, GCS, ("gcs.",))
    host = urlsplit(str(config.get("base_url", ""))).hostname or GOOGLE
    if not f".{host}".endswith(f".{GOOGLE}"):
        raise _UnmappedError(f"'{host}' is no host of Google, and may lack the XML API that the client uses")
    return config, bucket


def _azure(authority: str, properties: Mapping[str, str]) -> tuple[Config, str]:
    container, at, host = authority.partition("@")
    account = host.partition(".")[0] if at else properties.get("adls.account-name", "")
    # the properties of one of several accounts end with its host
    own = {key.removesuffix(f".{host}"): value for key, value in properties.items() if key.endswith(f".{host}")}
    given = {k: v for k, v in properties.items() if not k.startswith(_OF_ACCOUNTS)} | own
    config = _mapped(given, AZURE, ("adls.",))
    if not account or config.get("account_name", account) != account:
        raise _UnmappedError("its location and 'adls.account-name' name no account, or two")
    if not config.keys() & {"account_key", "sas_key", "client_secret"}:
        raise _UnmappedError("its credentials come from the machine")
    if (address := properties.get("adls.blob-storage-authority")) is not None:
        suffix = "" if address.startswith(f"{account}.") else f"/{account}"
        config["endpoint"] = f"{properties.get('adls.blob-storage-scheme', 'https')}://{address}{suffix}"
    elif at and not host.endswith((".core.windows.net",)):
        raise _UnmappedError(f"'{host}' is no address of Azure")
    return config | {"account_name": account}, container
