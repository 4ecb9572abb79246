"""Which requests a step's tokens end: most are passed over on columns, a few are looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence

from .arrays import IntArray
from .books import Books
from .departures import End
from .messages import Finished
from .request import FinishReason, RequestState
from .stops import StopRule, check_token, checked_rules, refuse_other_than_end


class Ends:
    """Asks the stop rules, of a user too. Raises ConfigError for a rule that is none."""

    def __init__(self, books: Books, rules: Sequence[StopRule]) -> None:
        self._books = books
        self._rules = checked_rules(rules)

    def watches(self, state: RequestState) -> bool:
        """Whether every token of a request must be looked at."""
        try:
            return state.repetition is not None or any(rule.applies_to(state.request) for rule in self._rules)
        except Exception:  # noqa: BLE001 - asked again at its first token, where it ends the request
            return True

    def among(self, rows: IntArray, token_ids: IntArray) -> list[End]:
        """The requests that end by these tokens, their last ones, which stand in the table."""
        table, config = self._books.table, self._books.config
        suspect = (table.known[rows] >= table.limit[rows]) | table.watched[rows] | table.stopped(rows, token_ids)
        for eos in config.eos_token_ids:
            suspect |= (token_ids == eos) & ~table.ignores_eos[rows]
        if not suspect.any():
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
            refuse_other_than_end(end)
        except Exception as error:  # noqa: BLE001 - a rule that fails ends its request and nobody else's
            text = f"a stop rule failed: {error!r} (request {state.request_id})"
            end = Finished(reason=FinishReason.ERROR, error=text)
        return (state, end) if end else None
