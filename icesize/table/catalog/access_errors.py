"""What catalogs and storage say when they refuse, in one line that says which right is missing and shows no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from pyiceberg.exceptions import ServerError, ServiceUnavailableError, TooManyRequestsError

from icesize.errors import IcesizeError, TableError
from icesize.redaction import redacted, scrub


@contextmanager
def storage_errors(cannot: str, advice: str, **facts: object) -> Iterator[None]:
    """Inside, what storage raises becomes TableError: what cannot be done, why, and what that means or what to do."""
    try:
        yield
    except IcesizeError:
        raise
    except Exception as error:  # of whatever the storage is reached by
        raise TableError(f"{cannot}: {brief(error)}; {advice}", **facts) from error


def readable(table: str) -> AbstractContextManager[None]:
    """`storage_errors` of reading manifests of a table.

    Mostly somebody's expiry has taken a snapshot between our look at the table and our reading of it.
    """
    cannot = f"Cannot read the history of '{table}'"
    return storage_errors(cannot, "if snapshots have expired since, try again", table=table)


def brief(error: BaseException) -> str:
    """Class and first line only, without credentials: bodies of catalog answers can be pages, and may hold some.

    Of storage that refused a request it says which right is missing. The error itself is scrubbed too, as it is about
    to become the cause of another or to be logged.
    """
    scrub(error)
    try:
        text = redacted(str(_given_up_for(error))).strip().splitlines()
    except Exception:  # Py4J asks a JVM that may be gone
        text = []
    text_of_error = f"{type(error).__name__}: {shortened(text[0], 200)}" if text else type(error).__name__
    return text_of_error + missing_right(error, text_of_error)


def said(error: BaseException) -> str:
    """An error in one line, without credentials: ours as they are, others as `brief` gives them."""
    return str(error) if isinstance(error, IcesizeError) else brief(error)


def _given_up_for(error: BaseException) -> BaseException:
    """Why urllib3 could not connect, of the error that requests makes of it, whose own text begins with how often that
    was tried, and ends too late."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return reason if isinstance(reason, Exception) else error


def shortened(text: str, most: int) -> str:
    """A text of more characters than that ends after a word, with dots; one long word is cut."""
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0] or text[:most]).rstrip(" ,;:") + " ..."


def may_pass(error: BaseException) -> bool:
    """Whether an error of catalog or storage may be gone a moment later: nobody answers, or not now.

    That something is missing, forbidden or wrong is an answer.
    """
    if isinstance(error, (FileNotFoundError, PermissionError)) or missing_right(error, str(error)):
        return False
    return isinstance(error, (OSError, *_NOT_NOW)) or type(error).__name__ in _NO_CONNECTION


def missing_right(error: BaseException, text_of_error: str) -> str:
    """`, the right to <do what> there is missing` for a request that storage refused and named; otherwise empty.

    fsspec hides the request that boto3 names behind an error of its own.
    """
    for text in (text_of_error, str(error.__cause__)):
        operation = _OPERATION.search(text) if _DENIED.search(text) else None
        for start, right in _RIGHTS.items() if operation else ():
            if operation and operation[1].startswith(start):
                return f", the right to {right} there is missing"
    return ""


_NOT_NOW = (ServerError, ServiceUnavailableError, TooManyRequestsError)

_NO_CONNECTION = ("OperationalError", "TTransportException", "EndpointConnectionError", "ConnectTimeoutError")
"""Of SQLAlchemy, Thrift and botocore, which need not be there."""

_DENIED = re.compile(r"ACCESS_DENIED|AccessDenied|Permission '?storage\.|HTTP status 403")

_OPERATION = re.compile(r"(?:during |calling the |storage\.objects\.)(\w+)")
"""How PyArrow and boto3 name the request of S3 that failed, and Google the permission that it takes."""

_RIGHTS = {
    "Put": "write (s3:PutObject)",
    "CreateMultipartUpload": "write (s3:PutObject)",
    "UploadPart": "write (s3:PutObject)",
    "CompleteMultipartUpload": "write (s3:PutObject)",
    "Get": "read (s3:GetObject)",
    "Head": "read (s3:GetObject, and s3:ListBucket for files that may be missing)",
    "Delete": "delete (s3:DeleteObject)",
    "List": "list (s3:ListBucket)",
    "create": "write (storage.objects.create)",
    "get": "read (storage.objects.get)",
    "delete": "delete (storage.objects.delete)",
    "list": "list (storage.objects.list)",
}
