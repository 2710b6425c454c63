"""Keeps credentials out of texts: messages, the errors that they are chained to, and what the logger `icesize` writes.

Catalogs and storage put what they were asked with into their errors, so every text that is passed on may hold some.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
"""What stands in texts in place of a credential."""
_MOST_SECRETS = 512
"""Values remembered: those of the newest loads, since vended ones change with each."""
_SHORTEST_SECRET = 6
"""Characters; shorter values are parts of ordinary words."""
_secrets: dict[str, None] = {}

_SECRET_KEY = re.compile(
    r"token|secret|password|credential|authorization|cookie|signature|connection-string|account-key|api-?key|session-key"
)
_NO_SECRET = re.compile(r"(?:access-delegation|expires|-at|-ms|uri|url|endpoint|provider|enabled|type|header-name)$")
_USER_INFO = re.compile(r"(://)[^/\s@'\"]*:[^/\s@]*@")
_IN_TEXT = (
    (_USER_INFO, rf"\1{HIDDEN}@"),
    # presigned requests of S3 and Google, shared access signatures of Azure
    (
        re.compile(r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|[?&;]sig)=)[^&\s'\"<>]+"),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+[\w.~+/=-]{6,}|basic\s+[\w.~+/=-]{16,})"), HIDDEN),
    # a property, a form field or an entry of a dictionary; not a folder of a partition: `/token=5/`
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
    """Credentials among the properties of a catalog or a FileIO: from now on no text of ours holds their values."""
    for secret in _secrets_in(properties):
        for spelt in (secret, quote(secret, safe=""), quote_plus(secret)):
            # moved to the end only when old ones are about to go: meanwhile another thread would not find it
            if len(spelt) >= _SHORTEST_SECRET and (spelt not in _secrets or len(_secrets) > most_values // 2):
                _secrets.pop(spelt, None)
                _secrets[spelt] = None
    for old in list(_secrets)[::-1][most_values:]:
        _secrets.pop(old, None)


def is_secret(key: str) -> bool:
    """Whether a property of this name holds a credential."""
    return _SECRET_KEY.search(key.lower()) is not None and _NO_SECRET.search(key.lower()) is None


def keys_with_secrets(properties: Mapping[str, object]) -> list[str]:
    """Names of the properties that hold a credential, by their name or as a password in an address."""
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
    """The text without credentials: neither values that were remembered, nor what looks like one.

    The latter are passwords in addresses, signatures of presigned requests, bearer tokens, and values of properties
    that are called like credentials.
    """
    # longest first: one may be part of another
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def scrub(error: BaseException | None) -> BaseException | None:
    """Redact the texts of an error and of all that it is chained to, in place: they are printed with ours.

    Returns the error; None for one whose text cannot be changed: nothing must be chained to it.
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
    """Whether the text of this one could be redacted, or need not be."""
    try:
        error.args = tuple(redacted(arg) if isinstance(arg, str) else arg for arg in error.args)
        if notes := error.__dict__.get("__notes__"):
            notes[:] = [redacted(str(note)) for note in notes]
        if isinstance(error, OSError) and isinstance(error.strerror, str):
            error.strerror = redacted(error.strerror)
        # some make their text from something else than their arguments
        return redacted(str(error)) == str(error)
    except Exception:  # its text cannot be had (Py4J asks a JVM that may be gone), or not be changed
        return False


def _scrub_record(record: logging.LogRecord) -> bool:
    try:
        record.msg, record.args = redacted(record.getMessage()), ()
    except Exception:  # an error here would end the program that only wanted to tell something
        record.msg, record.args = redacted(str(record.msg)), ()
    if record.exc_info and scrub(record.exc_info[1]) is None:
        record.exc_info = None
    return True


logging.getLogger("icesize").addFilter(_scrub_record)
