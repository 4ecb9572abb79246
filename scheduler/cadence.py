"""How often prompts may be computed beside requests that decode.

A step with a prompt in it is much longer than a step that decodes, and everybody in it waits.
With an interval of N, prompts are computed in every Nth step at most while somebody decodes
(after ``prefill_schedule_interval`` of vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from .arrays import IntArray


class PrefillCadence:
    """Counts the steps since the last one that computed a prompt.

    Args:
        interval: steps from one with prompts to the next; 1 holds nobody back.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._since = interval
        self._left_over = False

    @property
    def is_due(self) -> bool:
        """Whether the next step may compute prompts, whoever decodes."""
        return self._left_over or self._since >= self._interval - 1

    def planned(self, num_tokens: IntArray, *, left_over: bool) -> None:
        """A step was planned; one that computes nothing does not count.

        Args:
            num_tokens: of each request in it. A single one is a decode, or as cheap.
            left_over: requests that had a slot and room were left over for lack of budget:
                to make them wait for a whole interval would waste what the step was for.
        """
        if self._interval == 1 or not len(num_tokens):
            return
        if num_tokens.max() > 1:
            self._since, self._left_over = 0, left_over
        else:
            self._since += 1
