"""Errors of parts that know no request, with the request that they are about."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ..scheduler.errors import InvalidRequestError


@contextmanager
def about(request_id: str) -> Generator[None]:
    """What is refused inside says whose it was, and keeps its kind and its cause."""
    try:
        yield
    except InvalidRequestError as error:
        raise type(error)(f"{error} (request {request_id})") from error.__cause__
