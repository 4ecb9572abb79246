"""Every record may cross a socket: it comes back equal from its bytes."""

import inspect
from typing import Any

import msgspec
import numpy as np
import pytest
from play import Play, Sampled, ToyPlay, some

from callboard.actors.codec import decode, encode
from callboard.scheduler import (
    CachedRequestData,
    FinishReason,
    GrammarOutput,
    ModelRunnerOutput,
    NewRequestData,
    RepetitionDetection,
    Request,
    SamplingParams,
    SchedulerOutput,
    StructuredOutput,
    kv_events,
    messages,
    plan,
)
from callboard.scheduler.errors import InvalidRequestError
from callboard.scheduler.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    KVEventsLost,
    Removed,
    Stored,
)
from callboard.scheduler.logprobs import LogprobColumns
from callboard.scheduler.messages import (
    Abort,
    Admit,
    Admitted,
    CloseSession,
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    Finished,
    Granted,
    Grow,
    Publish,
    Release,
    Reserve,
    StepDone,
    Submit,
    Victim,
)
from callboard.scheduler.statistics import PrefillStats, PrefixCacheStats, SchedulerStats

INTS = np.array([3, -1, 2**62])
PARAMS = SamplingParams(
    temperature=0.5,
    seed=-(2**63),
    max_tokens=2**63 - 1,
    stop=["a", "é"],
    stop_token_ids=[1, 2],
    logit_bias={7: -1.5},
    repetition_detection=RepetitionDetection(max_pattern_size=4),
    structured_output=StructuredOutput(json_schema={"type": "object"}),
)
REQUEST = Request(
    request_id="a", prompt_token_ids=[1, 2**31 - 1], sampling_params=PARAMS, priority=-3, arrival_time=1.5,
    cache_salt="", adapter="x", block_digests=[b"\x00" * 32],
)  # fmt: skip
RELEASE = Release(req_id="a", fence=3, digests=[b"\xff" * 32], num_full_blocks=2)
PUBLISH = Publish(req_id="a", num_full_blocks=2, digests=[b"k"])
GROW, VICTIM = Grow(req_id="a", num_blocks=1), Victim(req_id="b", fence=9)
ADMIT = Admit(req_id="c", num_tokens=40, digests=[b"k", b"l"], read_cache=False, resumed=True)
ADMITTED = Admitted(req_id="c", block_ids=[1, 2], num_cached_tokens=16, num_scheduled_tokens=8)
PREFILL = PrefillStats(num_prompt_tokens=40, num_cached_tokens=16, num_cacheable_tokens=16)
PREFIX = PrefixCacheStats(reset=True, requests=1, queries=40, hits=16)
STATS = SchedulerStats(
    step=4, num_scheduled_reqs=2, num_scheduled_tokens=9, num_new_tokens=2, num_running=2, num_waiting=0,
    num_preemptions=1, kv_usage=0.5, prefix=PREFIX,
)  # fmt: skip
STORED = BlockStored(block_hashes=[b"k"], parent_block_hash=None, token_ids=[1, 2], block_size=2, adapter="x")
BATCH = KVEventBatch(number=0, step=4, time=1.5, events=[STORED, BlockRemoved(block_hashes=[b"k"]), AllBlocksCleared()])
CHANGES = [Stored(req_id="a", first=1, count=2, released=True), Removed(key=b"k")]
EVENT = EngineCoreEvent(kind="QUEUED", request_id="a", step=4, time=0.25)
FINISHED = Finished(reason=FinishReason.STOP, stop_reason=9)
NEW = NewRequestData(
    req_id="a", row=2, token_ids=[1, 2], num_prompt_tokens=1, block_ids=[3], num_computed_tokens=0,
    sampling_params=PARAMS, adapter="x", resumed=True,
)  # fmt: skip
PLACES = LogprobColumns(width=3, token_ids=INTS, values=np.array([-0.5, -1, -9], np.float32), ranks=INTS[:1])
RESULT = ModelRunnerOutput(
    step=7, token_ids=INTS, draft_token_ids={"a": [1]}, logprobs={"a": PLACES}, prompt_logprobs={"b": PLACES},
    finished_sending={"a"}, finished_recving={"b"}, failed_block_ids={4},
)  # fmt: skip

RECORDS: list[msgspec.Struct] = [
    REQUEST,
    Submit(REQUEST),
    Abort(["a", "b"]),
    CloseSession(session="s"),
    messages.ResetPrefixCache(force=True),
    messages.Pause("keep"),
    messages.Resume(),
    messages.SwapPolicy("priority"),
    StepDone(RESULT),
    RELEASE,
    PUBLISH,
    GROW,
    VICTIM,
    ADMIT,
    Reserve(completed=3),
    Reserve(
        completed=3, release=[RELEASE], grow=[GROW], victims=[VICTIM], publish=[PUBLISH], admit=[ADMIT],
        token_budget=5, prefill_cap=2, split_prompts=False, keep_free=1,
    ),
    ADMITTED,
    Granted(),
    Granted(
        grown={"a": [5]}, stalled={"b"}, preempted=["c"], admitted=[ADMITTED], refused=True, num_free_blocks=4,
        changes=CHANGES,
    ),
    PREFILL,
    PREFIX,
    STATS,
    BATCH,
    *BATCH.events,
    *CHANGES,
    KVEventsLost(first=1, last=3),
    messages.Follow(kv_events=True, steps=True),
    messages.GrammarNews(ready=["a"], failed={"b": "why"}),
    messages.PrepareGrammars(wanted={"a": StructuredOutput(choice=["x", "é"])}, ended=["b"]),
    EVENT,
    FINISHED,
    Finished(reason=FinishReason.ERROR, stop_reason="text", error="why"),
    EngineCoreOutput(
        request_id="a", new_token_ids=[1], new_logprobs=PLACES, finish_reason=FinishReason.LENGTH, prefill=PREFILL
    ),
    EngineCoreOutputs(step=0),
    EngineCoreOutputs(
        step=4, req_ids=["a", "b", "a"], token_ids=INTS, finished={"a": FINISHED}, prefill={"a": PREFILL},
        events=[EVENT], kv_events=[BATCH], scheduler_stats=STATS, logprobs={"a": PLACES}, prompt_logprobs={"b": PLACES},
    ),
    NEW,
    CachedRequestData(
        req_ids=["a", "b"], new_block_ids=[[1], None], num_computed_tokens=[3, 4], num_output_tokens=[1, 2],
    ),
    SchedulerOutput(step=1),
    SchedulerOutput(
        step=2, req_ids=("a", "b", "c"), rows=INTS, epochs=INTS, num_tokens=INTS, num_computed=INTS,
        num_outputs=INTS, samples=np.array([True, False, True]), grown={5: [6, 7]}, scheduled_new_reqs=[NEW],
        finished_req_ids={"d"}, preempted_req_ids={"e"}, scheduled_spec_decode_tokens={"a": [1]},
        scheduled_encoder_inputs={"a": [0]}, free_encoder_hashes=["h"], kv_connector_metadata=b"\x00\xff",
    ),
    GrammarOutput(step=3, req_ids=["a"], bitmask=b"\x01\x00"),
    RESULT,
    PLACES,
    ModelRunnerOutput(step=7, sampled_token_ids={"a": [1, 2], "b": []}),
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equality that looks into columns, their types included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, msgspec.Struct):
        fields = one.__struct_fields__
        return type(one) is type(other) and all(same(getattr(one, f), getattr(other, f)) for f in fields)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def crossed(record: Any) -> Any:
    """A record as it arrives at the other end."""
    return decode(encode(record), type(record))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_from_its_bytes(record: msgspec.Struct):
    assert same(crossed(record), record)


def test_every_record_is_tried_here_and_frozen():
    made = {type(record) for record in RECORDS}
    for module in (messages, plan, kv_events):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, msgspec.Struct) and kind not in (msgspec.Struct, SamplingParams, StructuredOutput):
                assert kind in made, f"{module.__name__}.{name} is not in RECORDS"
                assert kind.__struct_config__.frozen, name


def test_of_a_lane_with_several_records_each_comes_back_as_itself():
    for record in (Submit(REQUEST), Abort(["a"]), StepDone(RESULT)):
        assert same(decode(encode(record), Submit | Abort | StepDone), record)


def test_a_plan_of_a_real_step_comes_back_with_all_its_views():
    play = Play(max_num_running_reqs=2, block_size=4, caching=True)
    for name in "abc":
        play.add(name, some(9), max_tokens=2)
    play.steps(2)
    before = play.plan()
    after = crossed(before)
    assert same(after, before)
    assert before.finished_req_ids == {"a", "b"}
    assert after.num_scheduled_tokens == before.num_scheduled_tokens == {"c": 1}
    assert same(after.scheduled_cached_reqs, before.scheduled_cached_reqs)


def test_a_column_that_has_crossed_can_be_read_and_not_changed():
    rows = crossed(SchedulerOutput(step=2, rows=INTS)).rows
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1


def test_empty_columns_are_shared_and_cannot_be_changed():
    assert not plan.NO_INTS.flags.writeable
    assert not plan.NO_BOOLS.flags.writeable


def test_a_column_of_another_type_is_refused_with_its_place():
    data = encode(SchedulerOutput(step=2, rows=np.zeros(2)))
    with pytest.raises(msgspec.ValidationError, match=r"column is '<f8', '<i8' is needed - at `\$.rows`"):
        decode(data, SchedulerOutput)


@pytest.mark.parametrize("value", [np.zeros((2, 2), np.int64), np.array([None]), object(), np.int64(1)])
def test_what_has_no_form_is_refused_when_it_is_sent(value: Any):
    with pytest.raises(TypeError, match="has no form in a record"):
        encode(ModelRunnerOutput(step=1, logprobs={"a": value}))


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_cut_record_is_refused(cut: int):
    with pytest.raises(msgspec.DecodeError):
        decode(encode(RECORDS[0])[:cut], Request)


@pytest.mark.parametrize("column", [5, ["<i8"], ["<i8", b"123"], ["<i8", "text"], [None, b""]])
def test_a_damaged_column_is_refused(column: Any):
    data = msgspec.msgpack.encode({"step": 1, "rows": column})
    with pytest.raises(msgspec.ValidationError):
        decode(data, SchedulerOutput)


def test_parameters_out_of_range_are_refused_on_arrival_too():
    data = encode(PARAMS).replace(b"\xabtemperature\xcb?\xe0", b"\xabtemperature\xcb\xbf\xe0")
    with pytest.raises((InvalidRequestError, msgspec.ValidationError), match=r"temperature is -0.5"):
        decode(data, SamplingParams)


class WirePlay(ToyPlay):
    """The same steps, with every record sent as bytes."""

    def plan(self) -> SchedulerOutput:
        self.scheduler.bind_pool(self.kv.num_blocks)
        wants = self.scheduler.propose(0.0)
        granted = crossed(self.kv.reserve(crossed(wants))) if wants else Granted(num_free_blocks=self._free())
        self.last_plan = crossed(self.scheduler.commit(granted, 0.0))
        self.check()
        return self.last_plan

    def _free(self) -> int:
        return self.kv.statistics().num_free_blocks

    def result(self, plan: SchedulerOutput, sampled: Sampled) -> ModelRunnerOutput:
        return decode(encode(StepDone(super().result(plan, sampled))), Abort | StepDone).output

    def _take(self, outputs: EngineCoreOutputs) -> None:
        super()._take(crossed(outputs))


def _played(kind: type[ToyPlay], depth: int) -> ToyPlay:
    play = kind(blocks=9, caching=True, max_num_running_reqs=4, max_num_scheduled_tokens=9)
    for index in range(8):
        play.add(f"r{index}", some(2 + index, start=index // 3), max_tokens=3 + index)
    play.until_done(depth)
    return play


@pytest.mark.parametrize("depth", [1, 2])
def test_a_generation_whose_records_all_cross_a_wire_gives_the_same_tokens(depth: int):
    wired, direct = _played(WirePlay, depth), _played(ToyPlay, depth)
    assert wired.tokens == direct.tokens
    assert wired.scheduler.statistics() == direct.scheduler.statistics()
    assert wired.scheduler.statistics().num_preemptions > 0
    wired.assert_as_alone()
