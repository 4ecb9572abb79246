"""The way into the queue: at once, or when a request's grammar is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .books import Books
from .departures import Departures, End
from .errors import CallboardError, InvalidRequestError, PolicyError
from .limits import pool_error, refuse_invalid
from .messages import Finished
from .repetition import watch_repetition
from .request import Request
from .request_state import RequestState


class Arrivals:
    """Takes requests in, whole or not at all."""

    def __init__(self, books: Books, departures: Departures) -> None:
        self._books, self._departures = books, departures

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises InvalidRequestError for one that can never be served."""
        books = self._books
        try:
            state = self._state_of(request)
        except CallboardError:
            raise
        except Exception as error:  # a field that nobody looked at: the end of this request and of nobody else
            raise InvalidRequestError(
                f"the request cannot be queued: {error!r} (request {request.request_id})"
            ) from error
        state.number = books.counts.arrived = books.counts.arrived + 1
        if not books.grammars.park(state):
            books.waiting.add(state)  # first: a policy that raises has taken nothing in
        books.requests[request.request_id] = state
        books.waiting.sessions.begin(request)
        books.counts.prompt_tokens += len(request.prompt_token_ids)
        books.note("QUEUED", request.request_id, now)

    def _state_of(self, request: Request) -> RequestState:
        """What is remembered of a new request, of which nothing is kept yet."""
        books = self._books
        if request.request_id in books.requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use by a request that is alive")
        refuse_invalid(request, books.config, books.sizes, books.pool_blocks)
        state = RequestState(request)
        state.repetition = watch_repetition(request.sampling_params.repetition_detection, books.config.max_model_len)
        state.digests = list(request.block_digests or ())
        books.keys.hash_known(state)
        return state

    def is_meant(self, numbers: Mapping[str, int]) -> Callable[[str], bool]:
        """Whether a request that is alive is the arrival that somebody speaks of; any is, where no number is given."""
        requests = self._books.requests
        return lambda req_id: req_id in requests and numbers.get(req_id) in (None, requests[req_id].number)

    def grammar_news(
        self, ready: Iterable[str], failed: Mapping[str, str], broken: Mapping[str, str], now: float
    ) -> None:
        """Let requests whose grammars are ready join the queue, and end the others."""
        ends = {req_id: Finished.by_error(text) for req_id, text in failed.items()}
        ends |= {req_id: Finished.by_error(text, "runner") for req_id, text in broken.items()}
        requests, grammars, waiting = self._books.requests, self._books.grammars, self._books.waiting
        for state in filter(None, map(grammars.release, ready)):
            try:
                waiting.add(state)
            except PolicyError as error:
                grammars.take_back(state)
                ends[state.request_id] = Finished.by_error(str(error), "policy")
            waiting.refused = False  # it may come before the one that found no room
        self._departures.finish([(requests[req_id], end) for req_id, end in ends.items()], now)


def too_long(books: Books) -> list[End]:
    """The ends of requests that came before the KV cache's size was known, and that it can never hold."""
    errors = {state: pool_error(state.request, books.sizes, books.pool_blocks) for state in books.requests.values()}
    return [(state, Finished.by_error(error)) for state, error in errors.items() if error]
