"""What a request may never exceed: checked at the door, with both numbers in the text."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np

from .arrays import column_of_tokens
from .config import SchedulerConfig
from .errors import InvalidRequestError
from .kv_groups import GroupSizes
from .ranges import TOKEN_LIMIT, whole
from .request import Request

PRIORITY_LIMIT = 2**63  # the widest whole number that a record may hold


def refuse_invalid(request: Request, config: SchedulerConfig, sizes: GroupSizes, pool_blocks: int | None) -> None:
    """Raise InvalidRequestError for a request that can never be served."""
    if request.sampling_params.n != 1:
        raise InvalidRequestError(
            f"n is {request.sampling_params.n}, needed is a request for each completion (request {request.request_id})"
        )
    count, limit = len(request.prompt_token_ids), config.max_model_len - 1
    if not count:
        raise InvalidRequestError(f"prompt has no tokens, at least 1 is needed (request {request.request_id})")
    if count > limit:
        raise InvalidRequestError(f"prompt has {count} tokens, limit is {limit} (request {request.request_id})")
    if not request.is_checked:
        _check_tokens(request.prompt_token_ids, request.request_id)
    _check("priority", request.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT, request.request_id)
    if error := pool_error(request, sizes, pool_blocks):
        raise InvalidRequestError(error)


def pool_error(request: Request, sizes: GroupSizes, pool_blocks: int | None) -> str | None:
    """Why the KV cache can never hold the prompt; None if it can, or if its size is not known yet."""
    count = len(request.prompt_token_ids)
    need = sizes.total_room(count)
    if pool_blocks is None or need <= pool_blocks:
        return None
    return (
        f"prompt has {count} tokens and needs {need} KV blocks, limit is {pool_blocks} (request {request.request_id})"
    )


def token_limit(request: Request, config: SchedulerConfig, sizes: GroupSizes, pool_blocks: int | None) -> int:
    """Tokens at which a request ends by length; the last one needs no KV slot."""
    limit = config.max_model_len
    if pool_blocks is not None:
        limit = min(limit, sizes.longest_text(pool_blocks, limit) + 1)
    max_tokens = request.sampling_params.max_tokens
    return limit if max_tokens is None else min(limit, len(request.prompt_token_ids) + max_tokens)


def _check_tokens(tokens: list[int], request_id: str) -> None:
    with suppress(struct.error, OverflowError):
        if column_of_tokens(tokens).min() >= 0:
            return
    for extreme in (min(tokens), max(tokens)):
        _check("prompt token", extreme, 0, TOKEN_LIMIT, request_id)


def _check(what: str, value: Any, low: int, limit: int, request_id: str) -> None:
    plain = value.item() if isinstance(value, np.integer) else value  # prompts may come out of arrays
    whole(what, plain, low, limit, f" (request {request_id})")
