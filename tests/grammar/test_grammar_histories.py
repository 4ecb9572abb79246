"""Random histories of scheduler, KV cache, toy model and grammars: texts are what each request gets alone."""

from __future__ import annotations

import random
import re
from collections import deque

import pytest
from small_grammars import END, THOUGHT, VOCABULARY, fill, matcher, text

from callboard.runner import SimulatedRunner
from callboard.runner.grammar_manager import GrammarManager
from callboard.runner.grammar_rows import ConstrainedRows
from callboard.scheduler import (
    FCFSPolicy,
    GrammarOutput,
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    SchedulerOutput,
    StructuredOutput,
    plan_step,
)
from callboard.scheduler.request_state import RequestState

PATTERNS = [r"\d{3}-\d{4}", r"(yes|no|maybe)", r"[a-c]{1,9}!", r"#[0-9a-f]{6}", r"(ab|cd){2,5}"]
SIZES = {"max_model_len": 60, "block_size": 2}


class GrammarHistory:
    """One history; ``play`` gives each request's outputs and end."""

    def __init__(self, requests: list[Request], dice: random.Random, *, depth: int, blocks: int, **config) -> None:
        self.dice, self.depth = dice, depth
        self.to_come = deque(requests)
        sizes = SIZES | {"max_num_running_reqs": config.pop("rows", 4)}
        self.runner = SimulatedRunner(vocab_size=VOCABULARY.width, num_kv_blocks=blocks, eos_token_ids=(END,), **sizes)
        settings = SchedulerConfig(num_kv_blocks=blocks, steps_in_flight=depth, eos_token_ids=(END,), **sizes, **config)
        self.kv = KVCacheManager(blocks, SIZES["block_size"], settings.enable_prefix_caching, merge_equal_blocks=True)
        self.scheduler = Scheduler(settings)
        self.grammars = GrammarManager(VOCABULARY.width, VOCABULARY.stop_token_ids, fill)
        self.rows = ConstrainedRows(sizes["max_num_running_reqs"])
        self.parked: dict[str, StructuredOutput] = {}
        self.masks: dict[int, GrammarOutput] = {}
        self.under_way: deque[tuple[SchedulerOutput, bool]] = deque()
        self.tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        self.ends: dict[str, str] = {}

    def play(self) -> dict[str, tuple[bytes, str]]:
        for _ in range(3_000):
            self._tick()
            self._audit()
            if not self.to_come and not self.scheduler.num_requests and not self.under_way:
                return {name: (text(tokens), self.ends[name]) for name, tokens in self.tokens.items()}
        raise AssertionError(f"no end: {self.scheduler.statistics()}")

    def _tick(self) -> None:
        dice = self.dice
        if self.to_come and dice.random() < 0.5:
            self.scheduler.add_request(self.to_come.popleft())
        self._hear()
        if self.parked and dice.random() < 0.5:
            self._ready(dice.choice(list(self.parked)))
        if len(self.under_way) < self.depth and dice.random() < 0.7:
            self._plan()
        elif self.under_way:
            self._apply(*self.under_way.popleft())

    def _hear(self) -> None:
        if self.scheduler.grammars.has_news:
            news = self.scheduler.grammars.take_news()
            self.grammars.drop(news.ended)
            for name in news.ended:
                self.parked.pop(name, None)
            self.parked |= news.wanted

    def _ready(self, name: str) -> None:
        structured = self.parked.pop(name)
        self.grammars.add(name, matcher(structured.reasoning_end_token_id, regex=structured.regex))
        self.scheduler.grammar_news([name], {})

    def _plan(self) -> None:
        plan = plan_step(self.scheduler, self.kv)
        if not plan.req_ids:
            return
        constrained = self.rows.concern(plan)
        if constrained:
            self.grammars.plan(plan)
            self._take_masks()
        self.under_way.append((plan, constrained))

    def _apply(self, plan: SchedulerOutput, constrained: bool) -> None:
        masks = [self.masks.pop(plan.step)] if constrained else []  # those before it have ended: they are there
        output = ModelRunnerOutput(step=plan.step, token_ids=self.runner.compute(plan, *masks))
        if constrained:
            self.grammars.result(plan, output)
            self._take_masks()
        self._hand_out(self.scheduler.update_from_output(plan, output, 0.0))

    def _take_masks(self) -> None:
        self.masks |= {masks.step: masks for masks in self.grammars.take_masks()}
        assert not self.grammars.take_refused()

    def _hand_out(self, outputs) -> None:
        for output in outputs:
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason:
                self.ends[output.request_id] = str(output.finish_reason)

    def _audit(self) -> None:
        self.scheduler.check()
        self.kv.check()
        self.grammars.check()


def requests(dice: random.Random, count: int) -> list[Request]:
    shared = [dice.randrange(2, 200) for _ in range(12)]
    made = []
    for number in range(count):
        structured = None
        if dice.random() < 0.7:
            end = THOUGHT if dice.random() < 0.2 else None
            structured = StructuredOutput(regex=dice.choice(PATTERNS), reasoning_end_token_id=end)
        made.append(
            Request(
                request_id=f"r{number}",
                priority=dice.randint(0, 2),
                prompt_token_ids=shared[: dice.randint(0, 12)] + [dice.randrange(2, 200) for _ in range(3)],
                sampling_params=SamplingParams(max_tokens=dice.randint(3, 30), structured_output=structured),
            )
        )
    return made


@pytest.mark.parametrize("seed", range(60))
def test_constrained_texts_are_what_each_request_gets_alone(seed: int):
    dice = random.Random(seed)
    asked = requests(dice, dice.randint(2, 8))
    history = GrammarHistory(
        asked,
        dice,
        depth=dice.randint(1, 4),
        blocks=dice.choice([22, 30, 200]),
        rows=dice.randint(1, 5),
        max_num_scheduled_tokens=dice.choice([3, 7, 1000]),
        enable_prefix_caching=dice.random() < 0.6,
        policy=(policy := dice.choice(["fcfs", "priority"])),
        priority_preemption=dice.random() < 0.5 and policy == "priority",
        max_backfill=dice.choice([0, 2]),
    )
    found = history.play()
    for request in asked:
        alone = GrammarHistory([request], random.Random(0), depth=1, blocks=200).play()
        assert found[request.request_id] == alone[request.request_id], f"seed {seed}"
        structured = request.sampling_params.structured_output
        data, end = found[request.request_id]
        if structured and structured.reasoning_end_token_id is None and end == "stop":
            assert re.fullmatch(structured.regex.encode(), data)
    assert history.grammars.statistics().num_requests == 0 or history.scheduler.grammars.has_news


def test_histories_meet_preemptions_with_tokens_to_take_back():
    taken_back = preempted = 0
    for seed in range(40):
        dice = random.Random(seed)
        history = GrammarHistory(requests(dice, 6), dice, depth=3, blocks=22)
        history.play()
        preempted += history.scheduler.statistics().num_preemptions
        taken_back += history.grammars.statistics().num_rolled_back
    assert preempted > 10
    assert taken_back > 0


def test_a_request_waits_for_its_grammar_outside_the_queue_and_joins_it_at_its_place():
    history = GrammarHistory([], random.Random(0), depth=1, blocks=200)
    scheduler = history.scheduler
    for name, structured in (("a", StructuredOutput(regex="a")), ("b", None), ("c", None)):
        params = SamplingParams(structured_output=structured)
        scheduler.add_request(Request(request_id=name, prompt_token_ids=[5], sampling_params=params))
    assert (scheduler.num_waiting, scheduler.statistics().num_deferred, scheduler.num_requests) == (2, 1, 3)
    assert scheduler.books.requests["a"].status is RequestStatus.WAITING_FOR_GRAMMAR
    assert not scheduler.books.requests["a"].status.is_finished
    scheduler.grammar_news(["a"], {})
    assert [state.request_id for state in scheduler.policy] == ["a", "b", "c"]
    assert plan_step(scheduler, history.kv).req_ids == ("a", "b", "c")


def test_a_plain_request_behind_one_that_waits_for_its_grammar_is_planned():
    history = GrammarHistory([], random.Random(0), depth=1, blocks=200)
    for name, structured in (("a", StructuredOutput(regex="a")), ("b", None)):
        params = SamplingParams(structured_output=structured)
        history.scheduler.add_request(Request(request_id=name, prompt_token_ids=[5], sampling_params=params))
    assert plan_step(history.scheduler, history.kv).req_ids == ("b",)
    assert plan_step(history.scheduler, history.kv).req_ids == ("b",)
    history.scheduler.abort("a")
    news = history.scheduler.grammars.take_news()
    assert (news.wanted, news.ended) == ({}, [])  # nobody was told of it, so nobody need hear of its end
    history.scheduler.check()


def test_a_grammar_that_cannot_be_ends_its_request_with_the_reason():
    history = GrammarHistory([], random.Random(0), depth=1, blocks=200)
    params = SamplingParams(structured_output=StructuredOutput(regex="("))
    history.scheduler.add_request(Request(request_id="a", prompt_token_ids=[5], sampling_params=params))
    assert list(history.scheduler.grammars.take_news().wanted) == ["a"]
    history.scheduler.grammar_news([], {"a": "why", "unknown": "passed over"})
    outputs = history.scheduler.take_outputs()
    assert (str(outputs.finished["a"].reason), outputs.finished["a"].error) == ("error", "why")
    assert history.scheduler.grammars.take_news().ended == ["a"]
    history.scheduler.check()


def test_requests_leave_the_queue_from_any_place_of_it():
    policy = FCFSPolicy()
    states = {}
    for number, name in enumerate("abcde", 1):
        params = SamplingParams()
        states[name] = RequestState(Request(request_id=name, prompt_token_ids=[5], sampling_params=params))
        states[name].number = number
    for name in "cedb":  # c and e in order; d and b come late
        policy.add(states[name])
    policy.requeue(states["a"])
    assert [state.request_id for state in policy] == ["a", "b", "c", "d", "e"]
    assert [state.request_id for state in policy.candidates(2, 0.0)] == ["a", "b"]
    for name in "bca":
        policy.remove(states[name])
    assert ([state.request_id for state in policy], len(policy)) == (["d", "e"], 2)


@pytest.mark.parametrize("structured", [None, StructuredOutput(regex="b")], ids=["free", "constrained"])
def test_what_is_told_late_of_a_request_that_has_ended_is_no_news_of_the_next_of_its_id(structured):
    history = GrammarHistory([], random.Random(0), depth=1, blocks=200)
    scheduler, told = history.scheduler, []
    for constraint in (StructuredOutput(regex="a"), structured):
        params = SamplingParams(structured_output=constraint)
        scheduler.add_request(Request(request_id="a", prompt_token_ids=[5], sampling_params=params))
        told.append(scheduler.grammars.take_news().numbers)
        if constraint is not structured:
            scheduler.abort("a")
    scheduler.take_outputs()
    deferred = scheduler.statistics().num_deferred
    for late in ({"ready": ["a"], "failed": {}}, {"ready": [], "failed": {"a": "late"}}):
        scheduler.grammar_news(**late, broken={"a": "late"}, numbers=told[0])
    assert (scheduler.num_requests, scheduler.statistics().num_deferred) == (1, deferred)
    if structured:
        scheduler.grammar_news(["a"], {}, numbers=told[1])
    assert plan_step(scheduler, history.kv).req_ids == ("a",)
    scheduler.check()
