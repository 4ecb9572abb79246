"""What a message costs: this kit's channel beside anyio's memory object stream and asyncio.Queue.

python tests/bench/bench_channels.py

CPU microseconds a message, the least of several rounds; in brackets the ratio to asyncio.Queue, on
trio to anyio's stream. One way: a sender and a receiver with 64 places between them. Ask: a question
with the future of its answer in the envelope, one at a time, so that both tasks sleep and wake once
each. Wake: 256 sleeping readers, each woken once a turn, with the ratio to an anyio.Event each.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from collections.abc import Awaitable, Callable, Generator
from time import process_time
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from callboard.actors import Ask, Channel, Signal

MESSAGES, PLACES, READERS, TURNS, ROUNDS = 5_000, 64, 256, 20, 4
LOOPS = {"asyncio": ("asyncio", {}), "uvloop": ("asyncio", {"use_uvloop": True}), "trio": ("trio", {})}

Put = Callable[[Any], Awaitable[Any]]
Get = Callable[[], Awaitable[Any]]
Run = Callable[[], Awaitable[None]]


# --- lanes: a function that puts and one that gets


def our_channel() -> tuple[Put, Get]:
    channel = Channel[Any](PLACES, name="bench")
    return channel.send, channel.receive


def our_channel_iterated() -> tuple[Put, Get]:
    channel = Channel[Any](PLACES, name="bench")
    return channel.send, aiter(channel).__anext__


def anyio_stream() -> tuple[Put, Get]:
    send, receive = anyio.create_memory_object_stream[Any](PLACES)
    return send.send, receive.receive


def anyio_nowait_first() -> tuple[Put, Get]:
    send, receive = anyio.create_memory_object_stream[Any](PLACES)

    async def put(item: Any) -> None:
        try:
            send.send_nowait(item)
        except anyio.WouldBlock:
            await send.send(item)

    async def get() -> Any:
        try:
            return receive.receive_nowait()
        except anyio.WouldBlock:
            return await receive.receive()

    return put, get


def asyncio_queue() -> tuple[Put, Get]:
    queue = asyncio.Queue[Any](PLACES)
    return queue.put, queue.get


# --- questions


class FutureAsk:
    """A question with asyncio's future."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.reply = asyncio.get_running_loop().create_future()


class EventAsk:
    """A question with an event and a place for the answer: anyio has no future."""

    def __init__(self, message: Any) -> None:
        self.message, self.reply, self._event = message, self, anyio.Event()

    def set_result(self, value: Any) -> None:
        self._value = value
        self._event.set()

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._event.wait().__await__()
        return self._value


LANES: dict[str, tuple[Callable[[], tuple[Put, Get]], Callable[[Any], Any]]] = {
    "asyncio.Queue": (asyncio_queue, FutureAsk),
    "anyio stream": (anyio_stream, EventAsk),
    "anyio, nowait first": (anyio_nowait_first, EventAsk),
    "callboard": (our_channel, Ask),
    "callboard, iterated": (our_channel_iterated, Ask),
}


# --- what is measured


async def cpu_microseconds(count: int, run: Run, *others: Run) -> float:
    """Of one of so many messages, while the others run beside it."""
    async with anyio.create_task_group() as tasks:
        for other in others:
            tasks.start_soon(other)
        await checkpoint()
        await checkpoint()
        began = process_time()
        await run()
        return (process_time() - began) / count * 1e6


async def one_way(put: Put, get: Get) -> float:
    async def send() -> None:
        for number in range(MESSAGES):
            await put(number)

    async def receive() -> None:
        for _ in range(MESSAGES):
            await get()

    return await cpu_microseconds(MESSAGES, receive, send)


async def ask_and_reply(put: Put, get: Get, question: Callable[[Any], Any]) -> float:
    async def asker() -> None:
        for number in range(MESSAGES):
            ask = question(number)
            await put(ask)
            await ask.reply

    async def answerer() -> None:
        for _ in range(MESSAGES):
            ask = await get()
            ask.reply.set_result(ask.message)

    return await cpu_microseconds(MESSAGES, asker, answerer)


class EventSignal:
    """The portable way to a signal: one event after another."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


async def wake(kind: type[Signal | EventSignal]) -> float:
    signals = [kind() for _ in range(READERS)]

    def reader(signal: Signal | EventSignal) -> Run:
        async def read() -> None:
            for _ in range(TURNS):
                await signal.wait()

        return read

    async def turns() -> None:
        for _ in range(TURNS):
            for signal in signals:
                signal.set()
            await checkpoint()
            await checkpoint()  # trio mixes the order of a turn: the readers may come after us

    return await cpu_microseconds(TURNS * READERS, turns, *(reader(signal) for signal in signals))


# --- the table


async def least(measure: Callable[[], Awaitable[float]]) -> float:
    results: list[float] = []
    for _ in range(ROUNDS):  # other load on the machine only ever adds
        gc.collect()
        results.append(await measure())
    return min(results)


async def show(loop: str) -> None:
    base: list[float] = []
    for name, (lane, question) in LANES.items():
        if loop == "trio" and name == "asyncio.Queue":
            continue
        way = await least(lambda lane=lane: one_way(*lane()))
        ask = await least(lambda lane=lane, question=question: ask_and_reply(*lane(), question))
        base = base or [way, ask]
        print(f"{loop:8}{name:22}{cell(way, base[0])}{cell(ask, base[1])}")
    event, ours = await least(lambda: wake(EventSignal)), await least(lambda: wake(Signal))
    print(f"{loop:8}{'wake: anyio.Event':22}{cell(event, event)}")
    print(f"{loop:8}{'wake: Signal':22}{cell(ours, event)}")


def cell(cost: float, base: float) -> str:
    return f"{cost:10.2f} ({cost / base:.2f})"


def main() -> None:
    print(f"{'':30}{'one way':>17}{'ask and reply':>17}")
    for loop, (backend, options) in LOOPS.items():
        if importlib.util.find_spec(loop) is not None:
            anyio.run(show, loop, backend=backend, backend_options=options)


if __name__ == "__main__":
    main()
