"""Which requests a step's tokens end: most are passed over on columns, a few are looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import IntArray
from .books import Books
from .departures import End
from .messages import Finished
from .request_state import RequestState
from .stops import StopRule, check_token, checked_rules


class Ends:
    """Asks the stop rules, of a user too. Raises ConfigError for a rule that is none."""

    def __init__(self, books: Books, rules: Sequence[StopRule]) -> None:
        self._books = books
        self._rules = checked_rules(rules)

    def watches(self, state: RequestState) -> bool:
        """Whether every token of a request must be looked at."""
        try:
            return state.repetition is not None or any(rule.applies_to(state.request) for rule in self._rules)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - asked again at its first token, where it ends the request
            return True

    def among(self, rows: IntArray, token_ids: IntArray, known: IntArray) -> list[End]:
        """The requests that end by these tokens, which stand in the table; ``known`` tokens each has with them."""
        table = self._books.table
        suspect = known >= table.limit[rows]
        if table.num_watched:
            suspect |= table.watched[rows]
        if table.num_stopping:
            suspect |= table.stopped(rows, token_ids)
        for eos in self._books.config.eos_token_ids:
            ends = token_ids == eos
            if np.count_nonzero(ends):
                suspect |= ends & ~table.ignores_eos[rows]
        if not np.count_nonzero(suspect):
            return []
        return [end for row in rows[suspect].tolist() if (end := self._end_of(row))]

    def _end_of(self, row: int) -> End | None:
        table = self._books.table
        state = self._books.requests[table.ids[row]]
        try:
            end = check_token(
                state,
                table.tokens[row, table.prompt[row] : table.known[row]],
                at_limit=bool(table.known[row] >= table.limit[row]),
                eos_token_ids=self._books.config.eos_token_ids,
                rules=self._rules,
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a rule that fails ends its request and nobody else's
            # What looks like a cancellation comes from the rule too: nothing waits in it.
            text = f"a stop rule failed: {error!r} (request {state.request_id})"
            end = Finished.by_error(text, "rule")
        return (state, end) if end else None
