"""An actor asks, is asked, and tells what it waits for."""

import anyio
import pytest

from callboard.actors import Actor, ActorStoppedError, Ask, CallboardError, Channel, ChannelClosedError


class Oracle(Actor):
    """Answers numbers with their doubles; fails on zero."""

    def __init__(self) -> None:
        super().__init__("oracle")
        self.questions = self.mailbox.lane("questions", 1)

    async def run(self) -> None:
        ask: Ask[int, int]
        async for ask in self.questions:
            if ask.message:
                ask.reply.set_result(2 * ask.message)
            else:
                ask.reply.set_error(KeyError("zero"))


class Asker(Actor):
    def __init__(self, questions: Channel[Ask[int, int]]) -> None:
        super().__init__("asker", sends_to=[questions])
        self.questions = questions


async def test_an_ask_returns_the_answer():
    oracle = Oracle()
    asker = Asker(oracle.questions)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(oracle.run)
        assert [await asker.ask(oracle.questions, number) for number in (1, 2, 3)] == [2, 4, 6]
        oracle.questions.close()


async def test_an_ask_raises_the_error_that_answers_it_and_waits_for_nothing_after():
    oracle = Oracle()
    asker = Asker(oracle.questions)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(oracle.run)
        with pytest.raises(KeyError, match="zero"):
            await asker.ask(oracle.questions, 0)
        oracle.questions.close()
    assert asker.status().waiting_for == ""


async def test_an_answer_that_says_closed_is_not_taken_for_the_asked_actors_end():
    questions = Actor("oracle").mailbox.lane("questions", 1)
    asker = Actor("asker", sends_to=[questions])

    async def answer() -> None:
        (await questions.receive()).reply.set_error(ChannelClosedError("elsewhere"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        with pytest.raises(ChannelClosedError, match="channel 'elsewhere' is closed"):
            await asker.ask(questions, 6)


async def test_a_cancelled_ask_or_wait_leaves_no_trace_in_the_status():
    oracle = Oracle()
    asker = Asker(oracle.questions)
    with anyio.move_on_after(0):
        await asker.ask(oracle.questions, 1)
    with anyio.move_on_after(0):
        await asker.wait()
    assert asker.status().waiting_for == ""


async def test_asking_an_actor_that_has_stopped_raises_at_once():
    oracle = Oracle()
    oracle.mailbox.close()
    with pytest.raises(ActorStoppedError, match="actor 'oracle' takes no more questions: channel 'questions' is"):
        await Asker(oracle.questions).ask(oracle.questions, 1)


async def test_an_ask_that_waits_for_room_or_an_answer_ends_when_the_actor_stops():
    oracle, refused = Oracle(), []
    asker = Asker(oracle.questions)

    async def ask() -> None:
        with pytest.raises(ActorStoppedError):
            await asker.ask(oracle.questions, 1)
        refused.append(True)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        oracle.mailbox.close()
    assert len(refused) == 3


async def test_asking_over_a_lane_that_is_not_declared_is_refused():
    oracle = Oracle()
    with pytest.raises(CallboardError, match="actor 'silent' asks over 'questions', which its sends_to does not"):
        await Actor("silent").ask(oracle.questions, 1)
    assert not len(oracle.questions)


async def test_an_actor_without_a_run_says_which_class_lacks_it():
    with pytest.raises(NotImplementedError, match="Actor does not override run"):
        await Actor("lazy").run()


async def waits_for(actor: Actor, wait, *args) -> str:
    """What the status names while the actor sleeps in a function."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, *args)
        await anyio.wait_all_tasks_blocked()
        named = actor.status().waiting_for
        tasks.cancel_scope.cancel()
    assert actor.status().waiting_for == ""
    return named


async def test_the_status_names_the_mailbox_a_lane_an_answer_or_missing_room():
    oracle = Oracle()
    asker = Asker(oracle.questions)
    assert await waits_for(asker, asker.wait) == "mailbox"
    assert await waits_for(oracle, oracle.questions.receive) == "questions"
    assert await waits_for(asker, asker.ask, oracle.questions, 1) == "answer of oracle"
    assert await waits_for(asker, asker.send, oracle.questions, 1) == "room in questions"


async def test_the_status_tells_since_when():
    actor = Actor("runner")
    actor.enter("running")
    began = actor.status().since
    with anyio.move_on_after(0):
        await actor.wait()
    assert actor.status().since > began
    assert actor.status().state == "running"
