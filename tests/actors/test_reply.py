"""A reply comes once and stays, whoever awaits it and whatever becomes of them."""

import asyncio

import anyio
import pytest
from anyio.lowlevel import checkpoint
from loops import native

from callboard.actors import Ask, CallboardError, Reply


async def test_every_awaiting_task_gets_the_value():
    reply, got = Reply[int](), []

    async def waiter() -> None:
        got.append(await reply)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        reply.set_result(7)
    assert got == [7, 7, 7]


async def test_every_awaiting_task_gets_the_error():
    reply, got, error = Reply[int](), [], KeyError("gone")

    async def waiter() -> None:
        with pytest.raises(KeyError) as caught:
            await reply
        got.append(caught.value)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        reply.set_error(error)
    assert got == [error] * 3


async def test_a_value_survives_an_awaiter_whose_scope_was_cancelled():
    reply = Reply[int]()
    with anyio.move_on_after(0):
        await reply
    reply.set_result(7)
    assert await reply == 7
    assert await reply == 7


@native
async def test_a_value_survives_an_awaiter_cancelled_in_the_same_turn():
    reply = Reply[int]()
    first, second = asyncio.ensure_future(reply), asyncio.ensure_future(reply)
    await checkpoint()
    reply.set_result(7)
    first.cancel()
    assert await second == 7
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await reply == 7


@native
async def test_cancelling_one_awaiter_leaves_the_others_waiting():
    reply = Reply[int]()
    first, second = asyncio.ensure_future(reply), asyncio.ensure_future(reply)
    await checkpoint()
    first.cancel()
    await asyncio.wait([first])
    assert not second.done()
    reply.set_result(7)
    assert await asyncio.wait_for(second, None) == 7


async def test_awaiting_what_has_come_takes_no_turn_of_the_loop():
    reply = Reply[int]()
    reply.set_result(7)
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await reply == 7
    assert not scope.cancelled_caught


def test_a_second_value_or_error_is_refused_and_the_first_stays():
    reply = Reply[int]()
    reply.set_result(7)
    with pytest.raises(CallboardError, match="a reply was given twice"):
        reply.set_result(8)
    with pytest.raises(CallboardError, match="a reply was given twice"):
        reply.set_error(KeyError())
    assert asyncio.run(reply.wait()) == 7


def test_none_is_a_value():
    reply = Reply[None]()
    assert not reply.done()
    reply.set_result(None)
    assert reply.done()
    assert asyncio.run(reply.wait()) is None


def test_callbacks_are_called_once_with_the_reply_now_or_later():
    reply, called = Reply[int](), []
    reply.add_done_callback(called.append)
    assert called == []
    reply.set_result(7)
    reply.add_done_callback(called.append)
    assert called == [reply, reply]


def test_an_ask_carries_its_message_and_an_open_reply():
    ask = Ask[str, int]("how many")
    assert (ask.message, ask.reply.done()) == ("how many", False)
