"""Errors of catalogs and storage in one line, with the missing permission and without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from icesize.environment import Environment
from icesize.errors import IcesizeError, TableError
from icesize.redaction import redacted, scrub
from icesize.storage.stores import StoreSettingsError

LOG = logging.getLogger("icesize")

_LONGEST_PAUSE_SECONDS = 60.0


@contextmanager
def storage_errors(cannot: str, advice: str, **facts: object) -> Iterator[None]:
    """Convert errors of storage inside the context to TableError: the failed action, the reason and `advice`."""
    try:
        yield
    except IcesizeError:
        raise
    except Exception as error:  # each storage client raises its own errors
        raise TableError(f"{cannot}: {brief(error)}; {advice}", **facts) from error


@contextmanager
def readable(table: str) -> Iterator[None]:
    """Convert errors of storage inside the context, which reads manifests of a table, to TableError.

    The usual cause of a missing file is an expiry that removed a snapshot after the table was loaded.
    """
    try:
        yield
    except (IcesizeError, *_DEFECTS):
        raise
    except Exception as error:  # each storage client raises its own errors
        advice = "; if snapshots expired during this call, run it again"
        advice = advice if isinstance(error, FileNotFoundError) else ""
        raise TableError(f"Cannot read the history of '{table}': {brief(error)}{advice}", table=table) from error


_DEFECTS = (AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Errors that only a defect of icesize raises while it reads manifests."""


def brief(error: BaseException) -> str:
    """Return class and first line of an error, without credentials.

    Bodies of catalog responses can fill pages and may hold credentials. If storage denied a request, the text includes
    the missing permission. The error itself is scrubbed too, because callers log it or make it the cause of another
    error.
    """
    scrub(error)
    try:
        text = redacted(str(_given_up_for(error))).strip().splitlines()
    except Exception:  # Py4J calls a JVM that may be gone
        text = []
    text_of_error = f"{type(error).__name__}: {shortened(text[0], 200)}" if text else type(error).__name__
    return text_of_error + missing_right(error, text_of_error)


def said(error: BaseException) -> str:
    """Return an error in one line, without credentials: icesize's errors unchanged, all others by `brief`."""
    return str(error) if isinstance(error, IcesizeError) else brief(error)


def _given_up_for(error: BaseException) -> BaseException:
    """Return urllib3's reason for a failed connection, or the error itself.

    The text of the error that requests makes of the reason begins with retry counts and is too long.
    """
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return reason if isinstance(reason, Exception) else error


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters unchanged; cut a longer one after a word and add dots.

    One long word is cut inside.
    """
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0] or text[:most]).rstrip(" ,;:") + " ..."


def may_pass(error: BaseException) -> bool:
    """Return True if an error of catalog or storage may be gone a moment later: no response, or not now.

    A response that something is missing, forbidden or wrong is final.
    """
    if isinstance(error, (FileNotFoundError, PermissionError, StoreSettingsError)) or missing_right(error, str(error)):
        return False
    return isinstance(error, (OSError, *_NOT_NOW)) or type(error).__name__ in _NO_CONNECTION


def is_throttled(error: BaseException) -> bool:
    """Return True if the storage rejected a request because there are too many."""
    return _TOO_MANY.search(f"{type(error).__name__}: {error}") is not None


def requested_seconds(error: BaseException | None) -> float:
    """Return the pause that a catalog requests (`Retry-After`), at most one minute; 0 if it requests none."""
    while error is not None:
        if (response := getattr(error, "response", None)) is not None:
            # no header, or a date, which servers rarely send
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                return min(_LONGEST_PAUSE_SECONDS, max(0.0, float(response.headers["Retry-After"])))
        error = error.__cause__
    return 0.0


def asking_again(
    environment: Environment, seconds: float, name: str = "", passes: Callable[[BaseException], bool] = may_pass
) -> Retrying:
    """Return what repeats a request, with growing pauses. Each thread pauses for itself, so all of them slow down.

    Args:
        environment: The clock, and the `sleep` between two requests.
        seconds: The time from now on after which no request is repeated, even if the catalog requests a longer pause.
            The error is raised then. A pause of up to 10 s that it did not request may exceed this time.
        name: What is loaded, for the log; empty for requests that are too many for a log.
        passes: Returns True for an error after which the request is repeated. The default is that the catalog or
            storage does not respond.
    """
    until, pauses = environment.monotonic() + seconds, wait_random_exponential(multiplier=0.5, max=10)

    def error_of(state: RetryCallState) -> BaseException | None:
        return state.outcome.exception() if state.outcome else None

    def log_retry(state: RetryCallState) -> None:
        error = error_of(state)
        LOG.warning("%s cannot be loaded now (%s); asking again", name, brief(error) if error else "")

    return Retrying(
        retry=retry_if_exception(passes),
        stop=lambda state: environment.monotonic() + requested_seconds(error_of(state)) >= until,
        wait=lambda state: max(pauses(state), requested_seconds(error_of(state))),
        sleep=environment.sleep,
        before_sleep=log_retry if name else None,
        reraise=True,
    )


def missing_right(error: BaseException, text_of_error: str) -> str:
    """Return `, the right to <action> there is missing` for a request that storage denied and named; otherwise empty.

    fsspec hides the request that boto3 names behind an error of its own.
    """
    for text in (text_of_error, str(error.__cause__)):
        operation = _OPERATION.search(text) if _DENIED.search(text) else None
        for start, right in _RIGHTS.items() if operation else ():
            if operation and operation[1].startswith(start):
                return f", the right to {right} there is missing"
    return ""


_NOT_NOW = (ServerError, ServiceUnavailableError, TooManyRequestsError)

_TOO_MANY = re.compile(
    r"Slow[ _]?Down|TooManyRequests|Too Many Requests|Throttl|ServerBusy|RequestLimitExceeded|reduce your request"
    r"|(?:status|code)\W{0,2}(?:code\W{0,2})?(?:429|503)\b|\((?:429|503)\)",
    re.IGNORECASE,
)
"""Rejections of a request by S3, Azure and Google Cloud because there are too many, in the texts of their clients."""

_NO_CONNECTION = ("OperationalError", "TTransportException", "EndpointConnectionError", "ConnectTimeoutError")
"""Errors of SQLAlchemy, Thrift and botocore, by name, because these packages are optional."""

_DENIED = re.compile(r"ACCESS_DENIED|AccessDenied|Permission '?storage\.|HTTP status 403")

_OPERATION = re.compile(r"(?:during |calling the |storage\.objects\.)(\w+)")
"""Names of the failed S3 request in errors of PyArrow and boto3, and of the missing permission in Google's errors."""

_WRITES = ("Put", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
_RIGHTS = {
    **dict.fromkeys(_WRITES, "write (s3:PutObject)"),
    "Get": "read (s3:GetObject)",
    "Head": "read (s3:GetObject, and s3:ListBucket for files that may be missing)",
    "Delete": "delete (s3:DeleteObject)",
    "List": "list (s3:ListBucket)",
    "create": "write (storage.objects.create)",
    "get": "read (storage.objects.get)",
    "delete": "delete (storage.objects.delete)",
    "list": "list (storage.objects.list)",
}
