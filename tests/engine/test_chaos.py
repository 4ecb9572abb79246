"""Two thousand random lives of an engine, on all event loops, and faults that they would catch."""

from typing import Any

import anyio
import pytest
from chaos import Life

from callboard import BooksError, EngineDeadError
from callboard.actors import Signal
from callboard.runner.runner_actor import RunnerActor
from callboard.scheduler import KVCacheManager
from callboard.scheduler.messages import Granted, Reserve

LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}


def _live(seeds: range, loop: str) -> None:
    backend, options = LOOPS[loop]
    for seed in seeds:
        anyio.run(Life(seed).live, backend=backend, backend_options=options)


@pytest.mark.parametrize(
    ("loop", "first", "count"), [("asyncio", 0, 200), ("uvloop", 200, 100), ("trio", 300, 100)], ids=str
)
def test_random_lives_keep_every_token_and_give_everything_back(loop: str, first: int, count: int):
    _live(range(first, first + count), loop)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("loop", "first", "count"), [("asyncio", 1000, 800), ("uvloop", 2000, 400), ("trio", 3000, 400)], ids=str
)
def test_many_more_random_lives_do_so_too(loop: str, first: int, count: int):
    _live(range(first, first + count), loop)


def _errors(error: BaseException) -> list[BaseException]:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [error, *(found for each in inner for found in _errors(each))]


def _caught(kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether one of some lives ends in an error of these kinds."""
    for seed in range(60):
        try:
            _live(range(seed, seed + 1), "asyncio")
        except BaseException as error:  # noqa: BLE001 - the fault may show in any way
            return any(isinstance(found, kinds) for found in _errors(error))
    return False


def test_a_result_that_comes_twice_is_caught(monkeypatch: pytest.MonkeyPatch):
    deliver_to = RunnerActor.deliver_to

    def deliver_twice(self: RunnerActor, deliver: Any) -> None:
        deliver_to(self, lambda done: (deliver(done), deliver(done)))

    monkeypatch.setattr(RunnerActor, "deliver_to", deliver_twice)
    assert _caught((EngineDeadError, BooksError, AssertionError))


def test_a_wake_up_that_is_skipped_is_caught(monkeypatch: pytest.MonkeyPatch):
    wake, count = Signal.set, iter(range(10**9))

    def wake_mostly(self: Signal) -> None:
        if next(count) % 10:
            wake(self)

    monkeypatch.setattr(Signal, "set", wake_mostly)
    assert _caught((AssertionError,))


def test_a_block_that_is_freed_too_early_is_caught(monkeypatch: pytest.MonkeyPatch):
    reserve = KVCacheManager.reserve

    def reserve_and_free(self: KVCacheManager, wants: Reserve) -> Granted:
        granted = reserve(self, wants)
        for blocks in granted.grown.values():
            self._pool.release(blocks)
        return granted

    monkeypatch.setattr(KVCacheManager, "reserve", reserve_and_free)
    assert _caught((EngineDeadError, BooksError, AssertionError))
