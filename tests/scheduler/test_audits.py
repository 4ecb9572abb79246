"""Audits find what does not agree: each test breaks one thing, and the audit that watches it names it."""

from typing import Any

import pytest
from play import Ledger, Play, some

from callboard.scheduler import FCFSPolicy, RequestState
from callboard.scheduler.errors import BooksError
from callboard.scheduler.messages import Release, Reserve


def playing() -> Play:
    """One request runs, two wait."""
    play = Play(max_num_running_reqs=1)
    for name in "abc":
        play.add(name, 20)
    play.step()
    return play


def test_a_stranger_in_the_place_of_a_waiting_request_is_found():
    play, policy = playing(), FCFSPolicy()
    waiting = [*play.scheduler.policy]
    policy.add(waiting[0])
    policy.add(RequestState(waiting[1].request))  # of the same id, and not the one that is known
    play.scheduler.books.waiting.policy = policy
    with pytest.raises(BooksError, match=r"requests wait that are not known: \['c'\]"):
        play.scheduler.check()


def test_a_request_that_runs_and_waits_is_found():
    play = playing()
    state = play.scheduler.books.requests["a"]
    play.scheduler.policy.remove(next(iter(play.scheduler.policy)))
    play.scheduler.policy.add(state)
    with pytest.raises(BooksError, match=r"requests wait and hold a row: \['a'\]"):
        play.scheduler.check()


def test_a_request_that_waits_twice_is_found():
    play = playing()
    first, second = play.scheduler.policy
    play.scheduler.policy.remove(second)
    play.scheduler.policy.requeue(first)
    with pytest.raises(BooksError, match="2 wait, some of them twice"):
        play.scheduler.check()


def test_a_running_request_without_a_block_table_is_found():
    play = playing()
    play.kv.reserve(play.scheduler.take_releases())
    play.scheduler.check_against(play.kv)
    play.kv.reserve(reserve_release("a"))
    with pytest.raises(BooksError, match=r"requests run without a block table: \['a'\]"):
        play.scheduler.check_against(play.kv)


def test_a_block_table_that_is_left_of_an_ended_request_is_found():
    play = playing()
    play.scheduler.abort("a")
    play.scheduler.check_against(play.kv)  # its release is on its way
    play.scheduler.take_releases()
    with pytest.raises(BooksError, match=r"block tables are left of requests that do not run: \['a'\]"):
        play.scheduler.check_against(play.kv)


def reserve_release(name: str) -> Reserve:
    """A reservation that the scheduler did not make."""

    return Reserve(completed=0, release=[Release(req_id=name, fence=0)])


def test_a_block_whose_key_finds_nothing_is_found():
    ledger = Ledger(8, block_size=4)
    ledger.take("a", some(8))
    pool: Any = ledger.kv._ledger.pool  # pyright: ignore[reportPrivateUsage]
    pool._block_of[0].popitem()
    with pytest.raises(BooksError, match="has a key by which it is not found"):
        ledger.kv.check()


def test_a_kept_table_with_a_block_behind_its_window_is_found():
    ledger = Ledger(8, block_size=4, caching=False)
    ledger.take("a", some(8))
    ledger.ask(release=[Release(req_id="a", fence=0, keep_as="session")])
    holders: Any = ledger.kv._ledger.holders  # pyright: ignore[reportPrivateUsage]
    table = holders.find("session")
    pool: Any = ledger.kv._ledger.pool  # pyright: ignore[reportPrivateUsage]
    pool.release(table.groups[0][:1])
    table.passed[0] = 1  # the window is said to have passed a block that still stands in the table
    with pytest.raises(BooksError, match="'session' still has blocks among the 1"):
        ledger.kv.check()
