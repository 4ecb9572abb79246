"""Random histories of the scheduler's cores, without an event loop.

Each history draws a configuration and a workload from its seed, plays steps with up to D
plans under way, and compares every request with the toy model's definition.
"""

from __future__ import annotations

import random
from collections import deque

from play import make_kv

from callboard.runner import SimulatedRunner
from callboard.runner.toy_model import toy_tokens
from callboard.scheduler import (
    ModelRunnerOutput,
    PauseState,
    Request,
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
            policy=(policy := r.choice(["fcfs", "priority"])),
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

    def play(self) -> None:
        """Play to the end, then compare."""
        for _ in range(TICKS):
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
        if len(self.under_way) < self.depth and r.random() < 0.7:
            self._plan()
        elif self.under_way:
            self._apply(self.under_way.popleft())
        self.scheduler.check()
        self.scheduler.check_against(self.kv)

    def _disturb(self) -> None:
        """What an operator may do at any time."""
        r = self.random
        match r.randrange(4):
            case 0:
                self.scheduler.preempt_all()
            case 3:
                self.scheduler.close_session(r.choice(SESSIONS))
            case 1:
                self.scheduler.swap_policy(r.choice(["fcfs", "priority"]))
            case _:
                self.scheduler.set_pause_state(r.choice(list(PauseState)))

    def _submit(self) -> None:
        r = self.random
        self.to_come -= 1
        prompt = [r.randrange(self.vocab) for _ in range(r.randint(1, 25))]
        if r.random() < 0.5:
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
            arrival_time=float(-self.to_come),
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

    def _plan(self) -> None:
        plan = plan_step(self.scheduler, self.kv)
        assert plan.total_num_scheduled_tokens <= self.config.max_num_scheduled_tokens
        assert self.scheduler.num_running <= self.config.max_num_running_reqs
        self.kv.check()
        if plan.req_ids:
            self.under_way.append(plan)

    def _apply(self, plan: SchedulerOutput) -> None:
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
