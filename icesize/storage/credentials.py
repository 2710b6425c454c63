"""Credentials of object stores, which are renewed before they expire in a process that has the catalog."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from icesize.redaction import remember_secrets
from icesize.storage.store_settings import StoreSettings, store_settings

LOG = logging.getLogger("icesize")

RENEWED_SECONDS = 300
"""The rest of the life of credentials at which they are renewed: the client requests them again at this time."""
_BETWEEN_TRIES_SECONDS = 10
_MOST_RENEWALS = 512
NAMES = {
    "access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token",
    "bearer_token": "token", "account_key": "access_key", "sas_key": "sas_token",
}  # fmt: skip
"""Settings of the client that are credentials, with their names in what `Credentials` returns."""
_renewals: dict[_Values, Callable[[], StoreSettings | str]] = {}
"""Functions that return settings with newer credentials, by the older ones."""


@dataclass(frozen=True)
class _Values:
    """Credentials in the client's form, and the time at which they expire."""

    values: tuple[tuple[str, str | bool], ...]
    expires: datetime | None

    @classmethod
    def of(cls, settings: StoreSettings) -> _Values:
        values = {NAMES[key]: value for key, value in settings.config if key in NAMES}
        if "access_key" in values:
            values.pop("sas_token", None)
        expires_s = None if settings.expires_ms is None else settings.expires_ms / 1000
        expires = None if expires_s is None else datetime.fromtimestamp(expires_s, timezone.utc)
        return cls(tuple(values.items()), expires)


def renew_by(location: str, properties: Mapping[str, Any], reload: Callable[[], Mapping[str, Any]]) -> None:
    """Renew credentials in the `properties` of a FileIO, in this process, by those that `reload` returns.

    The catalog must have said when they expire. `location` is the table's.
    """

    def renew() -> StoreSettings | str:
        newest = reload()
        remember_secrets(newest)
        return store_settings(location, newest)

    settings = store_settings(location, properties) if any("expires-at" in key for key in properties) else ""
    if isinstance(settings, StoreSettings) and settings.expires_ms:
        _renewals[_Values.of(settings)] = renew
        for old in [*_renewals][:-_MOST_RENEWALS]:
            _renewals.pop(old, None)


class Credentials:
    """A function from which a client gets its credentials: at first, and then `RENEWED_SECONDS` before they expire."""

    def __init__(self, settings: StoreSettings) -> None:
        self._newest = _Values.of(settings)
        self._renew = _renewals.get(self._newest)
        self._next_s = 0.0

    def __call__(self) -> dict[str, Any]:
        """Return the credentials. If newer ones are missing, the store rejects the old ones some minutes later."""
        renew, expires, now_s = self._renew, self._newest.expires, time.time()
        if renew and expires and expires.timestamp() < now_s + RENEWED_SECONDS and self._next_s < now_s:
            self._next_s = now_s + _BETWEEN_TRIES_SECONDS
            try:
                found = renew()
                self._newest = self._newest if isinstance(found, str) else _Values.of(found)
            except Exception as error:  # each catalog client raises its own errors
                LOG.warning("Cannot renew the credentials of the storage: %s", type(error).__name__)
        return {**dict(self._newest.values), "expires_at": self._newest.expires}
