"""Removes credentials from messages, from the errors they are chained to, and from lines of the logger `icesize`.

Catalogs and storage include their request in their errors, so any text from them may contain credentials.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
"""The replacement of a credential in a text."""
_MOST_SECRETS = 512
"""Number of remembered values: those of the newest loads, because vended credentials change with each load."""
_SHORTEST_SECRET = 6
"""Characters. Shorter values are parts of ordinary words, so they are not redacted."""
_secrets: dict[str, None] = {}

_SECRET_KEY = re.compile(
    r"token|secret|password|credential|authorization|cookie|signature|connection-string|account-key|api-?key|session-key"
)
_NO_SECRET = re.compile(r"(?:access-delegation|expires|-at|-ms|uri|url|endpoint|provider|enabled|type|header-name)$")
_USER_INFO = re.compile(r"(://)[^/\s@'\"]*:[^/\s@]*@")
_IN_TEXT = (
    (_USER_INFO, rf"\1{HIDDEN}@"),
    # presigned requests of S3 and Google; shared access signatures of Azure
    (
        re.compile(r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|[?&;]sig)=)[^&\s'\"<>]+"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+[\w.~+/=-]{6,}|basic\s+[\w.~+/=-]{16,})"), HIDDEN),
    # a property, a form field or an entry of a dictionary; not the directory of a partition, such as `/token=5/`
    (
        re.compile(
            r"(?i)(?<![/\w.-])([\w.-]*(?:token|secret|password|credential|authorization|signature|account-?key)[\w.-]*"
            r"(?:=|\\*['\"]\s*[:=]\s*\\*['\"]))[^\s'\"\\,;&<>)}]+"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),
)


def remember_secrets(properties: Mapping[str, object], most_values: int = _MOST_SECRETS) -> None:
    """Remember the credentials among the properties of a catalog or a FileIO: `redacted` removes their values."""
    for secret in _secrets_in(properties):
        for spelt in (secret, quote(secret, safe=""), quote_plus(secret)):
            # reinsert only when old values are about to be dropped: between pop and insert, another thread misses it
            if len(spelt) >= _SHORTEST_SECRET and (spelt not in _secrets or len(_secrets) > most_values // 2):
                _secrets.pop(spelt, None)
                _secrets[spelt] = None
    for old in list(_secrets)[::-1][most_values:]:
        _secrets.pop(old, None)


def is_secret(key: str) -> bool:
    """Return True if a property of this name holds a credential."""
    return _SECRET_KEY.search(key.lower()) is not None and _NO_SECRET.search(key.lower()) is None


def keys_with_secrets(properties: Mapping[str, object]) -> list[str]:
    """Return the names of the properties that hold a credential, by their name or as a password in a URI."""
    return [key for key, value in properties.items() if any(_secrets_in({key: value}))]


def _secrets_in(properties: Mapping[str, object]) -> Iterator[str]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets_in(value)
        if not isinstance(value, str):
            continue
        if is_secret(key):
            # `Bearer <token>`, and OAuth's `<client id>:<client secret>`
            yield from {value, value.rpartition(" ")[2], value.rpartition(":")[2]}
        elif match := _USER_INFO.search(value):
            password = match[0].removesuffix("@").rpartition(":")[2]
            yield from {password, unquote(password)}


def redacted(text: str) -> str:
    """Return the text without credentials: remembered values, and text that looks like one.

    The latter are passwords in URIs, signatures of presigned requests, bearer tokens, and values of properties with the
    name of a credential.
    """
    # longest first: one secret may be part of another, and its rest would stay
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def scrub(error: BaseException | None) -> BaseException | None:
    """Redact the text of an error and of all errors it is chained to, in place, because they are printed together.

    Returns the error. Returns None if its text cannot be changed; the caller must then chain nothing to it.
    """
    if error is None or not _scrubbed(error):
        return None
    todo, done = [error], {id(error): True}
    while todo:
        each = todo.pop()
        for link in ("__cause__", "__context__"):
            before = getattr(each, link)
            if before is None:
                continue
            if id(before) not in done:
                done[id(before)] = _scrubbed(before)
                todo.append(before)
            if not done[id(before)]:
                setattr(each, link, None)
    return error


def _scrubbed(error: BaseException) -> bool:
    """Redact the text of one error; return True if it contains no credential afterwards."""
    try:
        error.args = tuple(redacted(arg) if isinstance(arg, str) else arg for arg in error.args)
        if notes := error.__dict__.get("__notes__"):
            notes[:] = [redacted(str(note)) for note in notes]
        if isinstance(error, OSError) and isinstance(error.strerror, str):
            error.strerror = redacted(error.strerror)
        # some errors build their text from other attributes than `args`
        return redacted(str(error)) == str(error)
    except Exception:  # the text is unavailable (Py4J reads it from a JVM that may be gone) or immutable
        return False


def _scrub_record(record: logging.LogRecord) -> bool:
    try:
        record.msg, record.args = redacted(record.getMessage()), ()
    except Exception:  # an error here would end a program that only logs a line
        record.msg, record.args = redacted(str(record.msg)), ()
    if record.exc_info and scrub(record.exc_info[1]) is None:
        record.exc_info = None
    return True


logging.getLogger("icesize").addFilter(_scrub_record)
