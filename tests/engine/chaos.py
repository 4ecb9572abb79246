"""Random lives of a whole engine: clients that read, dawdle, abort, leave, and are cancelled.

A history draws everything from its seed. It passes if every request's tokens are those it gets
alone (EQ), nothing is held afterwards (INV), and it never stops moving (PROG, counted in turns
of the loop, not in seconds).
"""

from __future__ import annotations

import asyncio
import gc
import random
from contextlib import suppress

import anyio
import sniffio
from anyio.lowlevel import checkpoint
from histories import some_groups

from callboard import Engine, EngineConfig, InvalidRequestError, RequestStream, SamplingParams, Session
from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler.kv_groups import ONE_GROUP, GroupSizes

TURNS = 20_000  # of the loop, in which a history must end
SETTLING = 100  # turns in which an idle engine must have given everything back


class Life:
    """One engine and its clients."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = r = random.Random(seed)
        self.vocab = r.choice([7, 50])
        self.eos = (3,) if r.random() < 0.5 else ()
        self.groups = some_groups(seed) if seed % 3 == 0 else ONE_GROUP
        self.blocks, self.block_size = r.randint(6, 30) * len(self.groups), r.randint(1, 4)
        self.max_len = r.choice([12, 30, 60])
        slots = r.randint(1, 5)
        self.runner = SimulatedRunner(
            vocab_size=self.vocab,
            num_kv_blocks=self.blocks,
            block_size=self.block_size,
            max_num_running_reqs=slots,
            max_model_len=self.max_len,
            eos_token_ids=self.eos,
            kv_groups=self.groups,
        )
        config = EngineConfig(
            block_size=self.block_size,
            max_num_running_reqs=slots,
            max_num_scheduled_tokens=r.choice([1, 2, 5, 9, 64, 1000]),
            policy=(policy := r.choice(["fcfs", "priority"])),
            enable_prefix_caching=r.random() < 0.7,
            long_prefill_token_threshold=r.choice([0, 0, 3]),
            steps_in_flight=r.randint(1, 3),
            priority_preemption=r.random() < 0.3 and policy == "priority",
            max_backfill=r.choice([0, 0, 1, 3]),
            prefill_schedule_interval=r.choice([1, 1, 1, 3]),
        )
        self.is_disturbed = r.random() < 0.4
        in_flight = config.steps_in_flight * config.max_num_scheduled_tokens
        self.sizes = GroupSizes(self.groups, self.block_size, in_flight)
        self.engine = Engine(config, runner=self.runner)
        self.shared = [r.randrange(self.vocab) for _ in range(20)]
        self.num_clients = r.randint(1, 10)
        self.num_done = 0
        self.preemptions = self.hits = 0

    async def live(self) -> None:
        """All clients to their ends, then the audit."""
        if self.random.random() < 0.5:
            self.runner.gate.close()
        async with self.engine, anyio.create_task_group() as clients:
            for number in range(self.num_clients):
                clients.start_soon(self._client, number)
            if self.is_disturbed:
                clients.start_soon(self._disturb)
            await self._until(lambda: self.num_done == self.num_clients, TURNS)
            self.runner.gate.open()
            await self._settle()
            self.engine.check()
            stats = self.engine.stats()
            self.preemptions, self.hits = stats.num_preemptions, stats.prefix_hits

    async def _disturb(self) -> None:
        """An operator who pauses, empties the cache and changes the policy while requests run."""
        r = self.random
        while self.num_done < self.num_clients:
            for _ in range(r.randint(1, 60)):
                await checkpoint()
            match r.randrange(3):
                case 0:
                    await self.engine.pause("keep")
                    for _ in range(r.randint(0, 20)):
                        await checkpoint()
                    await self.engine.resume()
                case 1:
                    await self.engine.reset_prefix_cache(force=True)
                case _:
                    await self.engine.swap_policy(r.choice(["fcfs", "priority"]))

    async def _settle(self) -> None:
        """Nothing is held any more; a session that was dropped may keep blocks until it is collected."""
        try:
            await self._until(self._nothing_is_held, SETTLING)
        except AssertionError:
            gc.collect()
            await self._until(self._nothing_is_held, SETTLING)

    async def _until(self, condition, turns: int) -> None:
        for turn in range(turns):
            if condition():
                return
            if turn % 3 == 0:
                self.runner.gate.open(1)
            await checkpoint()
        raise AssertionError(f"seed {self.seed}: no progress\n{self.engine.diagnose()}\n{self.engine.stats()}")

    def _nothing_is_held(self) -> bool:
        stats = self.engine.stats()
        return stats.kv_blocks_free == self.blocks and not stats.num_running and not stats.num_waiting

    async def _client(self, number: int) -> None:
        r = self.random
        for _ in range(r.randint(0, 30)):
            await checkpoint()
        if r.random() < 0.3:
            if await self._talk(number):
                gc.collect()  # errors and cancelled tasks hold what they have come through
            self.num_done += 1
            return
        prompt, params = self._prompt(25), self._params()
        try:
            stream = self.engine.generate(prompt, params, request_id=f"c{number}", priority=r.randint(0, 2))
            await r.choice([self._read, self._read, self._abort, self._leave, self._cancel])(stream, prompt, params)
        except InvalidRequestError:
            pass
        self.num_done += 1

    def _prompt(self, most: int) -> list[int]:
        r = self.random
        prompt = [r.randrange(self.vocab) for _ in range(r.randint(1, most))]
        return self.shared[: r.randint(1, most * 4 // 5)] + prompt[: r.randint(0, 3)] if r.random() < 0.5 else prompt

    def _params(self) -> SamplingParams:
        r = self.random
        return SamplingParams(temperature=0, max_tokens=r.randint(1, 20), ignore_eos=r.random() < 0.3)

    async def _talk(self, number: int) -> bool:
        """A client with a session, closed at the end or dropped; whether it was dropped."""
        r = self.random
        session = self.engine.open_session(session_id=f"s{number}", priority=r.randint(0, 2))
        for _ in range(r.randint(1, 4)):
            with suppress(InvalidRequestError):  # the text would be too long, and stays as it was
                await r.choice([self._answer, self._answers])(session)
        if r.random() < 0.2:
            return True
        await session.aclose()
        return False

    async def _answer(self, session: Session) -> None:
        """One input, whatever its reader does."""
        chunk, params = self._prompt(8), self._params()
        prompt = session.token_ids + chunk
        read = self.random.choice([self._read, self._read, self._abort, self._leave, self._cancel])
        await read(session.send(chunk, params), prompt, params)
        assert session.token_ids[: len(prompt)] in (prompt, prompt[: -len(chunk)]), f"seed {self.seed}"

    async def _answers(self, session: Session) -> None:
        """Several inputs at once; some are given up before their turn."""
        r = self.random
        sent: list[tuple[RequestStream, SamplingParams]] = []
        for _ in range(r.randint(2, 3)):
            params = self._params()
            sent.append((session.send(self._prompt(4), params), params))
        if r.random() < 0.3:
            await sent.pop(r.randrange(len(sent)))[0].aclose()
        for stream, params in sent:
            outputs = [output async for output in stream]
            tokens = [token for output in outputs for token in output.outputs[0].token_ids]
            wanted = self._alone(outputs[-1].prompt_token_ids, params)
            assert tokens == wanted, f"seed {self.seed}: {stream.request_id} got {tokens}"

    async def _read(self, stream: RequestStream, prompt: list[int], params: SamplingParams) -> None:
        """To the end, at a pace of its own, some reads broken off and made again."""
        tokens: list[int] = []
        pace, reason = self.random.choice([0, 0, 5]), None
        while reason is None:
            with anyio.CancelScope() as scope:
                if self.random.random() < 0.2:
                    scope.cancel()
                output = await anext(stream)
                tokens += output.outputs[0].token_ids
                reason = output.outputs[0].finish_reason
            for _ in range(pace):
                await checkpoint()
        assert tokens == self._alone(prompt, params), f"seed {self.seed}: {stream.request_id} got {tokens}"
        assert reason in ("stop", "length"), f"seed {self.seed}: {stream.request_id} ended with {reason}"

    async def _abort(self, stream: RequestStream, prompt: list[int], params: SamplingParams) -> None:
        for _ in range(self.random.randint(0, 20)):
            await checkpoint()
        await self.engine.abort(stream.request_id)
        ends = [output.outputs[0].finish_reason async for output in stream]
        assert ends[-1] is not None, f"seed {self.seed}: {stream.request_id} has no end"
        assert ends.count(None) == len(ends) - 1, f"seed {self.seed}: {stream.request_id} has several ends"

    async def _leave(self, stream: RequestStream, prompt: list[int], params: SamplingParams) -> None:
        async for output in stream:
            if self.random.random() < 0.3:
                break
            got = output.outputs[0].token_ids
            assert set(got) <= set(self._alone(prompt, params))
        await stream.aclose()

    async def _cancel(self, stream: RequestStream, prompt: list[int], params: SamplingParams) -> None:
        """The reading task is cancelled: on asyncio the native way, elsewhere by a scope."""
        patience = self.random.randint(0, 20)
        if sniffio.current_async_library() == "asyncio":
            task = asyncio.ensure_future(self._drain(stream))
            for _ in range(patience):
                await checkpoint()
            task.cancel()
            await asyncio.wait([task])
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drain, stream)
                for _ in range(patience):
                    await checkpoint()
                tasks.cancel_scope.cancel()
        await stream.aclose()

    async def _drain(self, stream: RequestStream) -> None:
        with suppress(InvalidRequestError):
            async for _ in stream:
                pass

    def _alone(self, prompt: list[int], params: SamplingParams) -> list[int]:
        room = min(self.max_len, self.sizes.longest_text(self.blocks, self.max_len) + 1) - len(prompt)
        eos = () if params.ignore_eos else self.eos
        return toy_tokens(prompt, min(params.max_tokens or room, room), self.vocab, eos=eos, groups=self.groups)
