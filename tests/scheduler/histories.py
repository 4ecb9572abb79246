"""Random histories of the scheduler's cores, without an event loop.

Each history draws a configuration and a workload from its seed, plays steps with up to D
plans under way, and compares every request with the toy model's definition.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections import deque
from pathlib import Path
from typing import Any

from play import make_kv

from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import (
    ModelRunnerOutput,
    PauseState,
    PriorityPolicy,
    Request,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    plan_step,
)
from callboard.scheduler.errors import InvalidRequestError
from callboard.scheduler.kv_groups import ONE_GROUP, KVGroup

TICKS = 5_000
SESSIONS = ("s", "t")


def some_groups(seed: int) -> tuple[KVGroup, ...]:
    """Two to four groups of layers, or a single one with a window."""
    r = random.Random(f"groups of {seed}")
    windows = [r.choice([None, 1, 2, 3, 5, 8, 13]) for _ in range(r.randint(1, 4))]
    return tuple(KVGroup(window=window) for window in windows)


def _example_policy() -> Any:
    """The module of the example: short prompts first, less what they have waited."""
    path = Path(__file__).parents[2] / "examples" / "shortest_first.py"
    spec = importlib.util.spec_from_file_location("shortest_first_of_histories", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AGEING = _example_policy()
TICK = 0.01  # seconds of waiting that a tick stands for; the example outweighs 5 tokens with it


def _aged(request: Request) -> float:
    return len(request.prompt_token_ids) + AGEING.PATIENCE * request.arrival_time


def _common_prefix(these: list[str], those: list[str]) -> list[str]:
    pairs = zip(these, those, strict=False)
    return [this for this, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


class History:
    """One random history; ``play`` raises AssertionError or BooksError where a rule is broken."""

    def __init__(self, seed: int, groups: tuple[KVGroup, ...] = ONE_GROUP) -> None:
        self.seed = seed
        self.random = r = random.Random(seed)
        self.depth = r.randint(1, 4)
        self.eos = (3,) if r.random() < 0.5 else ()
        self.blocks, self.block_size = r.randint(6, 30) * len(groups), r.randint(1, 4)
        sizes = {
            "max_num_running_reqs": r.randint(1, 5),
            "max_model_len": r.choice([12, 30, 60]),
            "block_size": self.block_size,
        }
        self.vocab = r.choice([7, 50])
        self.runner = SimulatedRunner(vocab_size=self.vocab, num_kv_blocks=self.blocks, kv_groups=groups, **sizes)
        self.config = SchedulerConfig(
            max_num_scheduled_tokens=r.choice([1, 2, 5, 9, 64, 1000]),
            policy=(policy := self._some_policy()),
            enable_prefix_caching=r.random() < 0.7,
            steps_in_flight=self.depth,
            eos_token_ids=self.eos,
            long_prefill_token_threshold=r.choice([0, 0, 3]),
            watermark=r.choice([0, 0, 0.2]),
            priority_preemption=r.random() < 0.3 and policy == "priority",
            max_backfill=r.choice([0, 0, 1, 3]),
            prefill_schedule_interval=r.choice([1, 1, 1, 3]),
            num_kv_blocks=r.choice([None, self.blocks]),
            kv_groups=groups,
            **sizes,
        )
        self.kv = make_kv(self.config, self.blocks)
        self.scheduler = Scheduler(self.config)
        self.shared = [r.randrange(self.vocab) for _ in range(20)]
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}
        self.last_of: dict[str, str] = {}  # the last request of each session
        self.under_way: deque[SchedulerOutput] = deque()
        self.to_come = r.randint(1, 12)
        self.regular = r.random() < 0.4  # plans while it may, then applies one, as the actor does
        self.ticks = 0

    def play(self) -> None:
        """Play to the end, then compare."""
        for self.ticks in range(TICKS):
            self._tick()
            if not self.to_come and not self.under_way and not self.scheduler.num_requests:
                break
        assert not self.scheduler.num_requests, f"seed {self.seed}: no progress, {self.scheduler.statistics()}"
        self._take_notices()
        for session in SESSIONS:
            self.scheduler.close_session(session)
        self.scheduler.release(self.kv)
        self.kv.check()
        assert self.kv.statistics().num_free_blocks == self.blocks, f"seed {self.seed}: {self.kv.statistics()}"
        self._compare()

    def _tick(self) -> None:
        r = self.random
        if self.to_come and r.random() < 0.4:
            self._submit()
        if r.random() < 0.2:
            self.scheduler.set_pause_state(PauseState.UNPAUSED)
        if self.requests and r.random() < 0.03:
            self.scheduler.abort(r.choice(list(self.requests)))
        if r.random() < 0.02:
            self._disturb()
        if self.regular:
            while len(self.under_way) < self.depth and self._plan():
                pass
            self._apply_next()
        elif len(self.under_way) < self.depth and r.random() < 0.7:
            self._plan()
        else:
            self._apply_next()
        self.scheduler.check()
        self.scheduler.check_against(self.kv)

    def _some_policy(self) -> Any:
        return self.random.choice(["fcfs", "priority", AGEING.ShortestFirst()])

    def _disturb(self) -> None:
        """What an operator may do at any time."""
        r = self.random
        match r.randrange(4):
            case 0:
                self.scheduler.preempt_all()
            case 3:
                self.scheduler.close_session(r.choice(SESSIONS))
            case 1:
                self.scheduler.swap_policy(self._some_policy())
            case _:
                self.scheduler.set_pause_state(r.choice(list(PauseState)))

    def _submit(self) -> None:
        r = self.random
        self.to_come -= 1
        prompt = [r.randrange(self.vocab) for _ in range(r.randint(1, 25))]
        if self.requests and r.random() < 0.2:
            prompt = r.choice(list(self.requests.values())).prompt_token_ids
        elif r.random() < 0.5:
            prompt = self.shared[: r.randint(1, 20)] + prompt[: r.randint(0, 3)]
        session = r.choice([None, None, *SESSIONS])
        if session in self.last_of:
            prompt = self._text_so_far(session) + prompt[: r.randint(1, 4)]
        params = SamplingParams(temperature=0, max_tokens=r.randint(1, 20), ignore_eos=r.random() < 0.3)
        request = Request(
            request_id=f"r{self.to_come}",
            prompt_token_ids=prompt,
            sampling_params=params,
            priority=r.randint(0, 2),
            arrival_time=self.ticks * TICK,
            session=session,
        )
        try:
            self.scheduler.add_request(request)
        except InvalidRequestError:
            return
        self.requests[request.request_id], self.tokens[request.request_id] = request, []
        if session:
            self.last_of[session] = request.request_id

    def _text_so_far(self, session: str) -> list[int]:
        """The text of a session's last request, ended or not, at times without its end."""
        last = self.last_of[session]
        text = self.requests[last].prompt_token_ids + self.tokens[last]
        return text[: len(text) - self.random.choice([0, 0, 1, 3])]

    def _plan(self) -> bool:
        waiting = self._who_may_be_admitted()
        plan = plan_step(self.scheduler, self.kv)
        self._check_order(waiting, [new.req_id for new in plan.scheduled_new_reqs])
        assert plan.total_num_scheduled_tokens <= self.config.max_num_scheduled_tokens
        assert self.scheduler.num_running <= self.config.max_num_running_reqs
        self.kv.check()
        if plan.req_ids:
            self.under_way.append(plan)
        return bool(plan.req_ids)

    def _who_may_be_admitted(self) -> list[str]:
        """In the order that the policy stands for, worked out anew."""
        states = list(self.scheduler.policy)
        if self.scheduler.pause_state is PauseState.PAUSED_ALL:
            return []
        if self.scheduler.pause_state is PauseState.PAUSED_NEW:
            states = [state for state in states if state.status is RequestStatus.PREEMPTED]
        if isinstance(self.scheduler.policy, PriorityPolicy):
            states.sort(key=lambda state: (state.request.priority, state.request.arrival_time))
        if getattr(self.scheduler.policy, "name", "") == "ShortestFirst":
            states.sort(key=lambda state: (_aged(state.request), state.request_id))
        return [state.request_id for state in states]

    def _check_order(self, waiting: list[str], admitted: list[str]) -> None:
        """Whoever was admitted came first, but for those who may use what the first cannot."""
        alive = [name for name in waiting if name in self.scheduler.books.requests]
        assert admitted == [name for name in alive if name in admitted], f"seed {self.seed}: {admitted} of {alive}"
        overtook = len(admitted) - len(_common_prefix(admitted, alive))
        assert overtook <= self.config.max_backfill, f"seed {self.seed}: {admitted} of {alive}"
        if self.config.max_backfill or getattr(self.scheduler.policy, "name", "") != "ShortestFirst":
            return
        # No starvation: nobody is overtaken by one that came when its wait outweighed its length.
        left = [self.requests[name] for name in alive if name not in admitted]
        for late, first in ((self.requests[name], other) for name in admitted for other in left):
            waited = AGEING.PATIENCE * (late.arrival_time - first.arrival_time)
            assert waited <= len(first.prompt_token_ids), f"seed {self.seed}: {late} before {first}"

    def _apply_next(self) -> None:
        if not self.under_way:
            return
        plan = self.under_way.popleft()
        result = ModelRunnerOutput(step=plan.step, token_ids=self.runner.compute(plan))
        for output in self.scheduler.update_from_output(plan, result, 0.0):
            assert output.request_id not in self.ends, f"seed {self.seed}: output after the end"
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason:
                self.ends[output.request_id] = str(output.finish_reason)

    def _take_notices(self) -> None:
        if notices := self.scheduler.take_outputs():
            self.ends |= {req_id: str(end.reason) for req_id, end in notices.finished.items()}

    def _compare(self) -> None:
        for req_id, request in self.requests.items():
            wanted, got = self._wanted(request), self.tokens[req_id]
            if self.ends[req_id] in ("abort", "error"):
                wanted = wanted[: len(got)]
            assert got == wanted, f"seed {self.seed}, {req_id}: {got}, alone it is {wanted}"

    def _wanted(self, request: Request) -> list[int]:
        prompt, params = request.prompt_token_ids, request.sampling_params
        most = self.config.max_model_len
        room = min(most, self.config.group_sizes().longest_text(self.blocks, most) + 1) - len(prompt)
        eos = () if params.ignore_eos else self.eos
        return toy_tokens(
            prompt, min(params.max_tokens or room, room), self.vocab, eos=eos, groups=self.config.kv_groups
        )
