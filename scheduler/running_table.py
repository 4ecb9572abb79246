"""The running requests' numbers, as columns.

A step looks at all running requests at once; a column for each number lets it do so without
a Python loop. Rows are handed out like the slots of a runner's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import TOKEN, BoolArray, IntArray, column_of_tokens
from .errors import BooksError

IDLE = -1
NO_TOKEN = -1
STOP_IDS = 4  # stop tokens of a request that are compared as columns; requests with more are watched


class RunningTable:
    """One row for each request that runs.

    Columns (int64 unless noted), in tokens where not said otherwise:
        known: tokens whose value is known, prompt and outputs.
        target: known tokens, and those that steps under way will give.
        computed: tokens covered by the steps planned so far.
        settled: tokens computed by steps whose results were applied; kept only where some layers have a window.
        told: ``settled`` as the KV cache was told last; likewise.
        prompt: tokens of the prompt.
        limit: count of tokens at which the request ends by length.
        room: that the blocks held have places for.
        published: in full blocks that the KV cache was told of.
        last_step: the last step that touches the row.
        epoch: number of the admission; IDLE for a free row.
        ignores_eos, watched (bool): end tokens do not end it; every token is looked at.
        priority: of the request; smaller is more urgent.
        out_of_turn (bool): admitted in the place of a request before it that found no room and still waits.
        stop_ids: [rows, STOP_IDS], tokens that end it; NO_TOKEN fills up.
        ids (object): the request ids.
        tokens: TOKEN, [rows, max_model_len + 1], the known tokens.
    """

    def __init__(self, rows: int, max_model_len: int) -> None:
        self.known = np.zeros(rows, np.int64)
        self.target = np.zeros(rows, np.int64)
        self.computed = np.zeros(rows, np.int64)
        self.settled = np.zeros(rows, np.int64)
        self.told = np.zeros(rows, np.int64)
        self.prompt = np.zeros(rows, np.int64)
        self.limit = np.zeros(rows, np.int64)
        self.room = np.zeros(rows, np.int64)
        self.published = np.zeros(rows, np.int64)
        self.last_step = np.zeros(rows, np.int64)
        self.epoch = np.full(rows, IDLE, np.int64)
        self.ignores_eos = np.zeros(rows, np.bool_)
        self.watched = np.zeros(rows, np.bool_)
        self.priority = np.zeros(rows, np.int64)
        self.out_of_turn = np.zeros(rows, np.bool_)
        self.num_out_of_turn = 0
        self.stop_ids = np.full((rows, STOP_IDS), NO_TOKEN, np.int64)
        self._num_stopping = 0  # rows with stop ids
        self.ids: Any = np.empty(rows, object)  # typed as Any: numpy has no array of str objects
        self.tokens = np.zeros((rows, max_model_len + 1), TOKEN)
        self.num_watched = 0
        self.num_unanswered = 0  # rows that have given no output
        self.order: IntArray = np.zeros(0, np.int64)  # rows in order of admission; a new array when it changes
        self._ids_in_order: tuple[str, ...] | None = None
        self._free = list(range(rows - 1, -1, -1))
        self._epochs = 0

    @property
    def num_free(self) -> int:
        """Rows that are idle."""
        return len(self._free)

    def admit(
        self,
        request_id: str,
        token_ids: list[int],
        num_prompt_tokens: int,
        limit: int,
        *,
        priority: int = 0,
        place: int | None = None,
        out_of_turn: bool = False,
    ) -> int:
        """Give a request a row, at a place in the order (None: its end); its columns start from nothing computed."""
        row = self._free.pop()
        self._epochs += 1
        self.epoch[row] = self._epochs
        self.ids[row] = request_id
        self.tokens[row, : len(token_ids)] = column_of_tokens(token_ids)
        self.known[row] = self.target[row] = len(token_ids)
        self.prompt[row] = num_prompt_tokens
        self.limit[row] = limit
        self.computed[row] = self.room[row] = self.published[row] = self.last_step[row] = 0
        self.priority[row] = priority
        self.out_of_turn[row] = out_of_turn
        self.num_out_of_turn += out_of_turn
        self.num_unanswered += len(token_ids) == num_prompt_tokens
        self._ids_in_order = None
        place = len(self.order) if place is None else place
        self.order = np.concatenate((self.order[:place], [row], self.order[place:]))
        return row

    def ids_of(self, rows: IntArray) -> tuple[str, ...]:
        """The request ids of rows; of all in their order they are kept."""
        if rows is not self.order:
            return tuple(self.ids[rows].tolist())
        if self._ids_in_order is None:
            self._ids_in_order = tuple(self.ids[rows].tolist())
        return self._ids_in_order

    def come_into_turn(self, row: int) -> None:
        """Nobody waits any longer whose place a row has taken."""
        self.num_out_of_turn -= int(self.out_of_turn[row])
        self.out_of_turn[row] = False

    def watch(self, row: int) -> None:
        """Let every token of a row be looked at."""
        self.num_watched += not self.watched[row]
        self.watched[row] = True

    def stop_at(self, row: int, token_ids: Sequence[int]) -> None:
        """Look out for tokens that end a row; what is more than ``STOP_IDS`` is looked for one by one."""
        if len(token_ids) > STOP_IDS:
            self.watch(row)
        few = token_ids[:STOP_IDS]
        self.stop_ids[row, : len(few)] = few
        self._num_stopping += bool(few)

    @property
    def num_stopping(self) -> int:
        """Rows with stop ids."""
        return self._num_stopping

    def stopped(self, rows: IntArray, token_ids: IntArray) -> BoolArray:
        """Which of these rows got one of their stop ids."""
        return (self.stop_ids[rows] == token_ids[:, None]).any(axis=1)

    def drop(self, rows: list[int]) -> None:
        """Take rows back."""
        self._num_stopping -= int((self.stop_ids[rows, 0] != NO_TOKEN).sum())
        self.stop_ids[rows] = NO_TOKEN
        self.num_out_of_turn -= int(self.out_of_turn[rows].sum())
        self.num_watched -= int(self.watched[rows].sum())
        self.num_unanswered -= int((self.known[rows] == self.prompt[rows]).sum())
        self.out_of_turn[rows] = self.watched[rows] = False
        self._ids_in_order = None
        self.epoch[rows] = IDLE
        self.order = self.order[self.epoch[self.order] != IDLE]
        for row in rows:
            self.ids[row] = None
            self._free.append(row)

    def outputs(self, row: int) -> list[int]:
        """The generated tokens of a row that are known."""
        return self.tokens[row, self.prompt[row] : self.known[row]].tolist()

    def append(self, rows: IntArray, token_ids: IntArray) -> IntArray:
        """One more token of each row has become known; returns how many are."""
        known = self.known[rows]
        self.tokens[rows, known] = token_ids
        known += 1
        self.known[rows] = known
        return known

    def first_answers(self, rows: IntArray) -> IntArray:
        """Of rows that have just got a token, those for which it is the first of the text."""
        first = rows[self.known[rows] == self.prompt[rows] + 1]
        self.num_unanswered -= len(first)
        return first

    def live(self, rows: IntArray, epochs: IntArray) -> BoolArray:
        """Which rows are still held by the admission that a plan was made for."""
        return self.epoch[rows] == epochs

    def check(self) -> None:
        """Raise BooksError unless the columns agree with each other."""
        order = self.order
        if len(set(order.tolist())) != len(order) or len(order) + len(self._free) != len(self.epoch):
            raise BooksError(f"{len(order)} rows in order, {len(self._free)} free, {len(self.epoch)} in all")
        target = self.target[order]
        if (turned := int(self.out_of_turn.sum())) != self.num_out_of_turn:
            raise BooksError(f"{turned} rows were admitted out of turn, {self.num_out_of_turn} were counted")
        if (watched := int(self.watched.sum())) != self.num_watched:
            raise BooksError(f"{watched} rows are watched, {self.num_watched} were counted")
        if (silent := int((self.known[order] == self.prompt[order]).sum())) != self.num_unanswered:
            raise BooksError(f"{silent} rows have given no output, {self.num_unanswered} were counted")
        stopping = int((self.stop_ids[:, 0] != NO_TOKEN).sum())
        if stopping != self._num_stopping or stopping > len(order):
            raise BooksError(f"{stopping} rows have stop ids, {self._num_stopping} were counted, {len(order)} run")
        for name, bad in (
            ("an idle row in order", self.epoch[order] == IDLE),
            ("a target behind what is known", target < self.known[order]),
            ("more computed than there are tokens", self.computed[order] > target),
            ("a target beyond the limit", target > self.limit[order]),
            ("more settled than computed", self.settled[order] > self.computed[order]),
            ("more told than settled", self.told[order] > self.settled[order]),
        ):
            if bad.any():
                raise BooksError(f"{name}: {self.ids[order][bad].tolist()}")
