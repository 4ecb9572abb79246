"""The way in: text becomes tokens, prompts are checked and keyed, requests are made of them."""

from __future__ import annotations

import operator
import secrets
from typing import Any

import msgspec

from ..runner.runner import RunnerInfo
from ..scheduler.errors import InvalidRequestError
from ..scheduler.hashing import extend_keys, root_key
from ..scheduler.kv_groups import GroupSizes
from ..scheduler.params import SamplingParams
from ..scheduler.request import Request
from ..scheduler.setting_types import shown
from .bad_words import with_token_ids
from .conversation import Conversation
from .error_names import about
from .parallel import child_params
from .tokenizer import Tokenizer

# A millisecond's work, about; longer prompts go to a thread.
LONG_PROMPT = 4_000  # characters, or tokens


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was given: text, tokens, or a conversation."""

    request_id: str
    keys: list[str]  # the names of its completions inside the engine
    text: str | None = None
    token_ids: list[int] | None = None
    conversation: Conversation | None = None
    is_checked: bool = False  # whether its token ids have been looked at one by one
    add_special_tokens: bool = True
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    arrived: float = 0.0
    context: list[int] = []  # tokens before it: the text of its session
    session: str | None = None

    @property
    def is_long(self) -> bool:
        """Whether it takes longer to make requests of it than the host's loop can spare."""
        words = sum(map(len, self.params.bad_words or ()))
        given = self.text if self.text is not None else self.token_ids or ()
        return self.conversation is not None or len(self.context) + len(given) + words > LONG_PROMPT


class Taken(msgspec.Struct, frozen=True):
    """What became of a prompt: a request for each completion, and its tokens once more for their reader."""

    requests: list[Request]
    tokens: list[int]  # the reader may write to it


class Intake:
    """Makes requests of prompts. Raises InvalidRequestError for what can never be served."""

    def __init__(
        self,
        info: RunnerInfo,
        tokenizer: Tokenizer | None,
        *,
        max_model_len: int,
        num_kv_blocks: int,
        sizes: GroupSizes,
        prefix_hash: str | None,
    ) -> None:
        self._info, self._tokenizer = info, tokenizer
        self._max_model_len, self._num_kv_blocks, self._hash = max_model_len, num_kv_blocks, prefix_hash
        self._sizes = sizes

    def take(self, prompted: Prompted) -> Taken:
        """The requests of a prompt; its tokens are checked and keys are made once for all."""
        token_ids = self._token_ids(prompted)
        if prompted.context:
            token_ids = prompted.context + token_ids
        self.check_count(len(token_ids), prompted.request_id)
        digests = self._keys(prompted, token_ids, self._hash) if self._hash else None
        params = with_token_ids(prompted.params, self._tokenizer)
        requests = [
            Request(
                request_id=key,
                prompt_token_ids=token_ids,
                sampling_params=_seeded(child_params(params, index)),
                priority=prompted.priority,
                arrival_time=prompted.arrived,
                cache_salt=prompted.cache_salt,
                adapter=prompted.adapter,
                session=prompted.session,
                block_digests=digests,
                is_checked=True,
            )
            for index, key in enumerate(prompted.keys)
        ]
        return Taken(requests, list(token_ids))

    def check_count(self, count: int, request_id: str) -> None:
        """Raise InvalidRequestError for a prompt of a length that can never be served."""
        limit = self._max_model_len - 1
        if not count:
            raise InvalidRequestError(f"prompt has no tokens, at least 1 is needed (request {request_id})")
        if count > limit:
            raise InvalidRequestError(f"prompt has {count} tokens, limit is {limit} (request {request_id})")
        need = self._sizes.total_room(count)
        if need > self._num_kv_blocks:
            raise InvalidRequestError(
                f"prompt has {count} tokens and needs {need} KV blocks, limit is {self._num_kv_blocks} "
                f"(request {request_id})"
            )

    def checked_tokens(self, tokens: list[Any], request_id: str) -> list[int]:
        """The token ids as plain numbers. Raises InvalidRequestError for those that the model does not have."""
        # 100,000 tokens in 3 ms, one by one in 10.
        if set(map(type, tokens)) != {int}:
            tokens = [_token_id(place, token, request_id) for place, token in enumerate(tokens)]
        if tokens:
            low, high = min(tokens), max(tokens)
            self.check_token("prompt token id", low if low < 0 else high, request_id)
        return tokens

    def check_token(self, what: str, token: int, request_id: str) -> None:
        """Raise InvalidRequestError for a token id that the model does not have."""
        if not 0 <= token < self._info.vocab_size:
            raise InvalidRequestError(
                f"{what} is {token}, limits are 0 and {self._info.vocab_size - 1} (request {request_id})"
            )

    def _token_ids(self, prompted: Prompted) -> list[int]:
        if prompted.token_ids is not None:
            if prompted.is_checked:
                return prompted.token_ids
            return self.checked_tokens(prompted.token_ids, prompted.request_id)
        assert self._tokenizer is not None, "the door refuses text where there is no tokenizer"
        with about(prompted.request_id):
            if prompted.conversation is not None:
                text, special = prompted.conversation.render(self._tokenizer), False
            else:
                text, special = prompted.text or "", prompted.add_special_tokens
            token_ids = self._tokenizer.encode(text, add_special_tokens=special)
        return self.checked_tokens(token_ids, prompted.request_id)

    def _keys(self, prompted: Prompted, token_ids: list[int], digest: str) -> list[bytes]:
        keys: list[bytes] = []
        size = self._info.block_size
        root = root_key(
            weights_id=self._info.weights_id,
            block_size=size,
            adapter=prompted.adapter,
            salt=prompted.cache_salt,
            digest=digest,
        )
        extend_keys(keys, root, token_ids, size, digest=digest)
        return keys


def _seeded(params: SamplingParams) -> SamplingParams:
    """With a seed in any case: choices outlive a preemption, and differ from request to request whatever their ids."""
    if params.seed is not None or params.greedy:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(63))


def _token_id(place: int, token: Any, request_id: str) -> int:
    if type(token) is int:
        return token
    try:
        # An array of one number counts as a number for `index`: a prompt of two dimensions is refused first.
        if not isinstance(token, bool) and getattr(token, "shape", ()) == ():
            return operator.index(token)
    except TypeError:
        pass
    raise InvalidRequestError(f"prompt[{place}] is {shown(token)}, needed is a token id (request {request_id})")
