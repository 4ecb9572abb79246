"""Counts that the scheduler keeps."""

import msgspec


class SchedulerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the scheduler, since it was made where not said otherwise."""

    num_running: int  # requests that hold a row now
    num_waiting: int  # requests in the queue now
    num_preemptions: int  # times that a request lost its blocks
    num_steps: int  # plans made that compute something
    num_prompt_tokens: int  # of requests queued
    num_generated_tokens: int  # outputs applied
    num_finished: int  # requests ended, aborted ones included
