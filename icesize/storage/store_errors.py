"""Errors of object stores in one sentence: the store, the reason, and the setting to change. Never credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape

from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError

from icesize.storage.locations import split
from icesize.storage.stores import OtherObjectError, StoreSettingsError

_MISSING = {"", "NoSuchKey", "NotFound", "BlobNotFound", "ResourceNotFound", "PathNotFound"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "ContainerBeingDeleted"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_CREDENTIALS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId", "InvalidSecurity",
    "AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo", "NoAuthenticationInformation",
    "AuthenticationRequired", "Unauthorized", "XAdminUserNotFound",
}  # fmt: skip
_REGION = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
_NAMES = {
    "s3": ("bucket", "'s3.endpoint'", "'s3.access-key-id' and 's3.secret-access-key'"),
    "gs": ("bucket", "'gcs.service.host'", "'gcs.oauth2.token'"),
}
_OF_AZURE = ("container", "'adls.account-name'", "'adls.account-key' or 'adls.sas-token'")
"""The word for a bucket, and the properties of the endpoint and of the credentials."""

_ANSWER = re.compile(r"<Code>(\w+)</Code>(?:\s*<Message>([^<\n]*))?")
_RIGHT_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting (?:'|\"|&#\d+;|&quot;)([\w-]+)")
_STATUS = re.compile(r"status code: (\d{3})\b")
_RETRIES = re.compile(r"after ([1-9]\d*) retries")
_NO_ANSWER = re.compile(r"Error performing \w+ \S+ in [^\n]*? - ([^\n]*)")
_ADDRESS = re.compile(r"\s*https?://\S+")
_PREFIX = re.compile(r"^Generic \w+ error: ")


class PastEndError(OSError):
    """A request for a range that begins at the end of an object, or after it."""


@contextmanager
def store_errors(request: str, location: str) -> Iterator[None]:
    """Turn errors of the client into `OSError`s that name the request and its location.

    The errors are chained to none, because the client's texts are pages with parts of the signed request.
    """
    try:
        yield
    except (OSError, ValueError, BaseError) as error:
        raise _as_os_error(request, location, error) from None


def _as_os_error(request: str, location: str, error: Exception) -> OSError:
    text = str(error)
    code = answer[1] if (answer := _ANSWER.search(text)) else ""
    status = found[1] if (found := _STATUS.search(text)) else ""
    if isinstance(error, InvalidPathError):
        return OtherObjectError(f"{request} of {location} met a name that the client cannot express")
    if status == "416":
        return PastEndError(f"{request} of {location}: the range begins after its end")
    if wrong := _wrong_setting(request, location, error, code):
        return StoreSettingsError(wrong)
    if isinstance(error, FileNotFoundError) and code in _MISSING:
        return FileNotFoundError(f"{location} does not exist")
    if isinstance(error, UnauthenticatedError) or status == "401":
        bucket, _, keys = _names(location)
        return StoreSettingsError(f"the {bucket} {_root(location)} rejects the credentials; check {keys} ({status})")
    if isinstance(error, PermissionDeniedError) or status == "403":
        return PermissionError(f"AccessDenied during {request} of {location}: {_reason(text)}")
    return OSError(f"{request} of {location} failed: {_reason(text)}")


def _wrong_setting(request: str, location: str, error: Exception, code: str) -> str:
    """Return a sentence on the setting that the store rejects; empty if it rejects none."""
    bucket, endpoint, keys = _names(location)
    store, text = f"the {bucket} {_root(location)}", str(error)
    no_container = "container does not exist" in text  # an answer to several requests at once has no code
    no_bucket = isinstance(error, FileNotFoundError) and not code and request == "PutObject"
    if code in _NO_BUCKET or no_container or no_bucket:
        return f"{store} does not exist; check the location of the table, and {endpoint}"
    if code in _EXPIRED:
        return f"{store} rejects the credentials, which have expired; renew them ({code})"
    if code in _CREDENTIALS or "Invalid Access Key" in text:
        return f"{store} rejects the credentials; check {keys} ({code or 'no valid key'})"
    if code in _REGION or "redirect without LOCATION" in text:
        found = _RIGHT_REGION.search(text)
        region = f"the region '{found[1] or found[2]}'" if found else "another region"
        return f"{store} is in {region}; set 's3.region' ({code or 'redirect'})"
    return ""


def _names(location: str) -> tuple[str, str, str]:
    return _NAMES.get(split(location)[0], _OF_AZURE)


def _root(location: str) -> str:
    return "/".join(location.split("/")[:3])


def _reason(text: str) -> str:
    """Return the code and message of the store's answer, or the client's own reason, in one line."""
    facts = [f"status code {found[1]}"] if (found := _STATUS.search(text)) else []
    facts += [f"after {found[1]} retries"] if (found := _RETRIES.search(text)) else []
    noted = f" ({', '.join(facts)})" if facts else ""
    if answer := _ANSWER.search(text):
        return f"{answer[1]}{noted}{': ' * bool(answer[2])}{unescape(answer[2] or '')}"
    line = found[1] if (found := _NO_ANSWER.search(text)) else (text.strip().splitlines() or [""])[0]
    said = _PREFIX.sub("", _ADDRESS.sub("", line)).strip()
    return ("no reason given" if _STATUS.search(line) else said or "no reason given") + noted
