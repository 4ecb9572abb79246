"""The process that compiles: limits that hold, children that are gone, a process that comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from small_grammars import VOCABULARY

from callboard.runner.compile_pool import CompilePool
from callboard.runner.grammar_cache import GrammarCache, GrammarCacheStatistics
from callboard.runner.grammar_spec import GrammarConfig, GrammarSpec
from callboard.scheduler.errors import BooksError, ConfigError

LIMITS = GrammarConfig(compile_seconds=1.0, compile_memory=256 << 20, num_compilers=2)


def schema(value) -> GrammarSpec:
    return GrammarSpec(kind="json_schema", text=json.dumps(value))


def nested(depth: int) -> GrammarSpec:
    text = '{"type":"object","required":["a"],"properties":{"a":' * depth + "{}" + "}}" * depth
    return GrammarSpec(kind="json_schema", text=text)


def alternatives(depth: int) -> dict:
    """Two ways at each of many levels: exponential work."""
    value: dict = {"type": "integer"}
    for level in range(depth):
        value = {"anyOf": [{"type": "array", "items": value}, {"type": "object", "properties": {f"p{level}": value}}]}
    return value


RULES = [f'r{i} ::= "a" r{i + 1}?' for i in range(6000)]
BUSY = {
    "nested alternatives": schema(alternatives(11)),
    "many optional properties": schema({"type": "object", "properties": {f"p{i}": {} for i in range(2000)}}),
    "counted repetitions": GrammarSpec(kind="regex", text="((((a{1,200}){1,200}){1,200}){1,200})"),
    "chained rules": GrammarSpec(kind="grammar", text="\n".join(["root ::= r0", *RULES, 'r6000 ::= "b"'])),
    "nested deep": nested(900),
    "nested deeper than Python goes": nested(5000),
}


@pytest.fixture(scope="module")
def pool():
    pool = CompilePool(VOCABULARY, LIMITS)
    yield pool
    pool.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory(pid: int) -> int:
    """Bytes of resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_grammar_comes_back_as_bytes(pool: CompilePool):
    answer = pool.compile(GrammarSpec(kind="regex", text="[0-9]+"))
    assert answer.error is None
    assert len(answer.payload) > 100


@pytest.mark.parametrize("name", BUSY)
def test_what_takes_too_long_or_too_much_ends_within_its_limit_and_leaves_no_process(pool: CompilePool, name: str):
    pool.compile(GrammarSpec(kind="regex", text="a"))
    assert pool._process is not None
    answer = pool.compile(BUSY[name])
    assert answer.error is None or re.search(r"more than 1\.0 s|memory|nested too deep", answer.error)
    assert (answer.error is None) == bool(answer.payload)
    assert children(pool._process.pid) == []


def test_most_of_these_do_not_finish(pool: CompilePool):
    """Else the tests above show nothing."""
    errors = [pool.compile(spec).error for spec in BUSY.values()]
    assert sum(error is not None for error in errors) >= 3, errors


def test_the_process_itself_does_not_grow(pool: CompilePool):
    pool.compile(GrammarSpec(kind="regex", text="a"))
    assert pool._process is not None
    before = memory(pool._process.pid)
    for number in range(40):
        assert pool.compile(GrammarSpec(kind="regex", text=f"[0-9]{{{number + 1}}}")).error is None
    assert memory(pool._process.pid) - before < 20 << 20


def test_two_hundred_at_once_are_compiled_by_turns_while_a_busy_one_is_at_it():
    limits = msgspec.structs.replace(LIMITS, compile_seconds=6.0)  # a busy machine may make an easy one wait
    turns = threading.Semaphore(limits.num_compilers)
    pool = CompilePool(VOCABULARY, limits)

    def one(spec: GrammarSpec) -> str | None:
        with turns:
            return pool.compile(spec).error

    specs = [schema({"type": "integer", "minimum": number}) for number in range(200)]
    try:
        with ThreadPoolExecutor(202) as threads:
            busy = threads.submit(one, BUSY["nested alternatives"])
            assert list(threads.map(one, specs)) == [None] * 200
            assert re.search(r"more than 6\.0 s|memory", busy.result() or "")
    finally:
        pool.close()


def test_a_process_that_was_killed_is_started_again(pool: CompilePool):
    pool.compile(GrammarSpec(kind="regex", text="a"))
    assert pool._process is not None
    first = pool._process.pid
    os.kill(first, signal.SIGKILL)
    assert pool.compile(GrammarSpec(kind="regex", text="b")).error is None
    assert pool._process.pid != first


def test_closing_ends_what_is_being_compiled():
    pool = CompilePool(VOCABULARY, GrammarConfig(compile_seconds=600))
    pool.compile(GrammarSpec(kind="regex", text="a"))
    assert pool._process is not None
    pid = pool._process.pid
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(pool.compile, BUSY["nested alternatives"])
        while not children(pid):
            os.sched_yield()
        (child,) = children(pid)
        pool.close()
        assert busy.result().error is not None
    while Path(f"/proc/{child}").exists() and "(zombie)" not in Path(f"/proc/{child}/status").read_text():
        os.sched_yield()  # it is killed by its parent's end, which the system tells it


def test_a_cache_forgets_the_oldest_first_and_keeps_to_its_size():
    cache = GrammarCache(100)
    a, b, c, huge = (GrammarSpec(kind="regex", text=text) for text in "abch")
    cache.put(a, "A", 40)
    cache.put(b, "B", 40)
    assert cache.get(a) == "A"
    cache.put(c, "C", 40)
    cache.put(huge, "H", 101)
    assert [cache.get(spec) for spec in (a, b, c, huge)] == ["A", None, "C", None]
    assert cache.statistics() == GrammarCacheStatistics(num_grammars=2, num_bytes=80, num_hits=3, num_misses=2)
    cache.check()
    cache.num_bytes += 1
    with pytest.raises(BooksError, match="grammars of 80 bytes are kept, 81 are counted of 100"):
        cache.check()


@pytest.mark.parametrize("field", ["compile_seconds", "mask_seconds", "compile_memory", "num_compilers", "cache_bytes"])
def test_limits_out_of_range_are_refused_by_name(field: str):
    with pytest.raises(ConfigError, match=field):
        GrammarConfig(**{field: -1})
