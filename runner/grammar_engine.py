"""Compilers, vocabulary and matchers behind one door, made when the first constraint comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from .compile_pool import CompilePool
from .grammar_manager import GrammarManager
from .grammar_spec import GrammarConfig, GrammarSpec, Vocabulary


class MadeGrammar(msgspec.Struct, frozen=True):
    """A compiled grammar and its size."""

    compiled: Any
    num_bytes: int


class GrammarEngine:
    """``compile`` blocks and is called on threads; the rest is cheap, once a grammar was compiled.

    Args:
        vocabulary: makes the vocabulary; called once.
        config: limits.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], config: GrammarConfig) -> None:
        self._make_vocabulary, self._config = vocabulary, config
        self._lock = threading.Lock()
        self._pool: CompilePool | None = None
        self._vocabulary: Vocabulary | None = None
        self._info: Any = None
        self._closed = self._warm = False

    def compile(self, spec: GrammarSpec) -> MadeGrammar | str:
        """A compiled grammar, or why there is none."""
        try:
            pool = self._get_pool()
            self._warm_up()
            answer = pool.compile(spec)
            if answer.error is not None:
                return answer.error
            from . import xgrammar_backend  # noqa: PLC0415 - takes seconds; only those who constrain pay

            compiled = xgrammar_backend.load(answer.payload, self._get_info())
            return MadeGrammar(compiled, int(compiled.memory_size_bytes))
        except Exception as error:  # noqa: BLE001 - whatever a grammar does is its requests' end, and no more
            return f"{type(error).__name__}: {error}"

    def new_matcher(self, compiled: Any) -> Any:
        """A matcher at the grammar's beginning."""
        from . import xgrammar_backend  # noqa: PLC0415

        return xgrammar_backend.new_matcher(compiled)

    def new_manager(self) -> GrammarManager:
        """The manager of this vocabulary's masks; a grammar was compiled before."""
        from . import xgrammar_backend  # noqa: PLC0415

        assert self._vocabulary is not None
        vocabulary = self._vocabulary
        return GrammarManager(
            vocabulary.width,
            vocabulary.stop_token_ids,
            xgrammar_backend.BatchFill(),
            mask_seconds=self._config.mask_seconds,
        )

    def close(self) -> None:
        """End what is being compiled."""
        self._closed = True  # noted first: a pool that is just being made is closed by its maker
        if self._pool is not None:
            self._pool.close()

    def _get_pool(self) -> CompilePool:
        with self._lock:
            if self._pool is None:
                self._vocabulary = self._make_vocabulary()
                self._pool = CompilePool(self._vocabulary, self._config)
            if self._closed:
                self._pool.close()
            return self._pool

    def _warm_up(self) -> None:
        """Import what matches while the process starts that compiles: each takes seconds, once."""
        with self._lock:
            if not self._warm:
                self._warm = True
                # Not a daemon: at an exit in the middle of the import its libraries would abort the process.
                threading.Thread(target=_import, name="grammar imports").start()

    def _get_info(self) -> Any:
        from . import xgrammar_backend  # noqa: PLC0415

        with self._lock:
            if self._info is None:
                assert self._vocabulary is not None
                self._info = xgrammar_backend.tokenizer_info(self._vocabulary)
            return self._info


def _import() -> None:
    with suppress(Exception):  # raised again where it is imported next
        from . import xgrammar_backend  # noqa: F401, PLC0415
