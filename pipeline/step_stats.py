"""What one step meant to the requests in it, as their readers feel it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from ..scheduler.messages import EngineCoreOutputs, Finished
from ..scheduler.request import FinishReason
from ..scheduler.statistics import SchedulerStats
from .outputs import Timings
from .stream import StreamState


class FinishedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that has ended."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_tokens: int  # generated
    timings: Timings


class IterationStats(msgspec.Struct, frozen=True, kw_only=True):
    """One step's outputs, on their way to their readers. Times are in seconds."""

    time: float  # on the event loop's clock
    num_prompt_tokens: int  # of the prompts whose first token came
    num_generated_tokens: int  # tokens for requests that have not ended before
    num_preempted: int  # requests that lost their blocks since the record before
    times_to_first_token: list[float]  # since the arrival, one for each first token
    inter_token_latencies: list[float]  # since its tokens before, one for each other request with new tokens
    finished: list[FinishedRequest]  # ended by the engine; who was aborted or cut by its reader is not among them


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one step.

    Args:
        scheduler: what the step planned and what runs and waits after it (``SchedulerStats``).
        iteration: what its outputs meant to their readers: first tokens, gaps, ends (``IterationStats``).
    """

    scheduler: SchedulerStats
    iteration: IterationStats


def iteration_stats(
    outputs: EngineCoreOutputs, stream: Callable[[str], StreamState | None], now: float
) -> IterationStats:
    """What a step's outputs mean, before they are delivered; ``stream`` finds a request's state."""
    given = Counter(outputs.req_ids)  # tokens of each, in the step's order
    states = {key: state for key in dict.fromkeys([*given, *outputs.finished]) if (state := stream(key))}
    before = {key: state.timings for key, state in states.items()}
    first = [key for key in given if key in states and before[key].first_token is None]
    later = [before[key].last_token for key in given if key in states]
    return IterationStats(
        time=now,
        num_prompt_tokens=sum(states[key].num_prompt_tokens for key in first),
        num_generated_tokens=sum(key in states for key in outputs.req_ids),
        num_preempted=sum(event.kind == "PREEMPTED" for event in outputs.events),
        times_to_first_token=[now - before[key].arrived for key in first],
        inter_token_latencies=[now - last for last in later if last is not None],
        finished=[
            _finished(outputs.finished[key], states[key], given[key], now) for key in outputs.finished if key in states
        ],
    )


def _finished(end: Finished, state: StreamState, new: int, now: float) -> FinishedRequest:
    """An end that comes with ``new`` tokens."""
    timings = state.timings
    if new:
        first = now if timings.first_token is None else timings.first_token
        timings = msgspec.structs.replace(timings, first_token=first, last_token=now)
    return FinishedRequest(
        finish_reason=end.reason,
        num_prompt_tokens=state.num_prompt_tokens,
        num_tokens=state.num_tokens + new,
        timings=msgspec.structs.replace(timings, finished=now),
    )
