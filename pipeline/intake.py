"""The way in: text becomes tokens, prompts are checked and keyed, requests are submitted."""

from __future__ import annotations

import secrets

import anyio
import anyio.to_thread
import msgspec

from ..actors import Actor, Channel
from ..actors.tasks import no_quiet_end
from ..runner.runner import RunnerInfo
from ..scheduler.errors import InvalidRequestError
from ..scheduler.hashing import extend_keys, root_key
from ..scheduler.kv_groups import GroupSizes
from ..scheduler.messages import Submit
from ..scheduler.params import SamplingParams
from ..scheduler.request import Request
from .bad_words import with_token_ids
from .board import Board
from .parallel import child_params
from .tokenizer import Tokenizer

# A millisecond's work of the tokenizer, about; longer prompts go to a thread.
LONG_PROMPT = 4_000  # characters, or tokens


class Prompted(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was given: text or tokens."""

    request_id: str
    keys: list[str]  # the names of its completions inside the engine
    text: str | None = None
    token_ids: list[int] | None = None
    add_special_tokens: bool = True
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    arrived: float = 0.0
    context: list[int] = []  # tokens before it: the text of its session
    session: str | None = None

    @property
    def size(self) -> int:
        """Characters or tokens."""
        words = sum(map(len, self.params.bad_words or ()))
        return len(self.context) + len(self.text if self.text is not None else self.token_ids or ()) + words


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

    def requests(self, prompted: Prompted) -> list[Request]:
        """The requests of a prompt, one for each completion; tokens and keys are made once."""
        token_ids = prompted.context + self._token_ids(prompted)
        self.check_prompt(token_ids, prompted.request_id)
        digests = self._keys(prompted, token_ids, self._hash) if self._hash else None
        params = with_token_ids(prompted.params, self._tokenizer)
        return [
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
            )
            for index, key in enumerate(prompted.keys)
        ]

    def check_prompt(self, token_ids: list[int], request_id: str) -> None:
        """Raise InvalidRequestError for a prompt that can never be served."""
        count, limit = len(token_ids), self._max_model_len - 1
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
        low, high = min(token_ids), max(token_ids)
        self.check_token("prompt token id", low if low < 0 else high, request_id)

    def check_token(self, what: str, token: int, request_id: str) -> None:
        """Raise InvalidRequestError for a token id that the model does not have."""
        if not 0 <= token < self._info.vocab_size:
            raise InvalidRequestError(
                f"{what} is {token}, limits are 0 and {self._info.vocab_size - 1} (request {request_id})"
            )

    def _token_ids(self, prompted: Prompted) -> list[int]:
        if prompted.text is None:
            return list(prompted.token_ids or ())
        assert self._tokenizer is not None, "the door refuses text where there is no tokenizer"
        return self._tokenizer.encode(prompted.text, add_special_tokens=prompted.add_special_tokens)

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


class IntakeActor(Actor):
    """Turns prompts into submissions; long ones in a thread, so that nobody waits behind them."""

    def __init__(self, core: Intake, board: Board, *, submits: Channel[Submit], max_waiting: int) -> None:
        super().__init__("intake", sends_to=[submits])
        self.core, self._board, self._submits = core, board, submits
        self.prompts: Channel[Prompted] = self.mailbox.lane("prompts", max_waiting)

    async def run(self) -> None:
        # Threads of our own: the host's may all be waiting for results of this engine.
        threads = anyio.CapacityLimiter(1)
        async with anyio.create_task_group() as tasks:
            async for prompted in self.prompts:
                if not any(map(self._board.get, prompted.keys)):  # aborted already: not worth the work
                    for key in prompted.keys:
                        self._board.gone(key)
                elif prompted.size <= LONG_PROMPT:
                    self._submit_all(prompted, self._requests(prompted))
                else:
                    tasks.start_soon(no_quiet_end, "the tokenizing of a prompt", self._submit_long, prompted, threads)
        self._submits.close()

    async def _submit_long(self, prompted: Prompted, threads: anyio.CapacityLimiter) -> None:
        requests = await anyio.to_thread.run_sync(self._requests, prompted, limiter=threads)
        self._submit_all(prompted, requests)

    def _requests(self, prompted: Prompted) -> list[Request] | Exception:
        try:
            return self.core.requests(prompted)
        except Exception as error:  # noqa: BLE001 - whatever a prompt does to the tokenizer is its request's end
            return error

    def _submit_all(self, prompted: Prompted, requests: list[Request] | Exception) -> None:
        """All completions in one turn, so that they meet in one plan."""
        if isinstance(requests, Exception):
            for key in prompted.keys:
                self._board.fail(key, requests)
            return
        tokens = list(requests[0].prompt_token_ids)  # the reader's own: it may write to it
        for request in requests:
            self._submit(request, tokens)

    def _submit(self, request: Request, tokens: list[int]) -> None:
        stream = self._board.get(request.request_id)
        if stream is None:  # aborted while it was on its way
            self._board.gone(request.request_id)
            return
        stream.begin(tokens)
        self._board.load.enter(stream.key, len(tokens))
        self._submits.send_nowait(Submit(request))
