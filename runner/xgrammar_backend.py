"""The one place that names xgrammar: grammars compiled, brought back from bytes, and matched.

Importing this module imports xgrammar, which takes seconds: it is done on a thread, and in the
process that compiles.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgrammar as xgr
from numpy.typing import NDArray

from ..scheduler.errors import InvalidRequestError
from .grammar_answer import Compile, first_line
from .grammar_spec import GrammarSpec, Vocabulary
from .regex_dialect import as_compiled
from .schema_check import checked_schema
from .tag_check import checked_tag

Bitmask = NDArray[np.int32]


def tokenizer_info(vocabulary: Vocabulary) -> Any:
    """xgrammar's view of a vocabulary. A token without bytes is special to it: never allowed inside a text."""
    return xgr.TokenizerInfo(
        list(vocabulary.tokens),
        xgr.VocabType.RAW,
        vocab_size=vocabulary.width,
        stop_token_ids=vocabulary.stop_token_ids,
    )


def make_compile(vocabulary: Vocabulary) -> Compile:
    """The function that a child process calls: a constraint to a grammar's bytes."""
    info = tokenizer_info(vocabulary)
    return lambda spec: compile_spec(spec, info).serialize_json().encode()


def compile_spec(spec: GrammarSpec, info: Any) -> Any:
    """Compile a constraint; raises what xgrammar raises, or InvalidRequestError with a place in the schema."""
    # Made in the child: a compiler with threads of its own does not survive a fork.
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    match spec.kind:
        case "json_schema":
            schema = checked_schema(_parsed(spec))
            try:
                return compiler.compile_json_schema(json.dumps(schema), max_whitespace_cnt=spec.max_whitespace)
            except RuntimeError as error:  # it names no place
                raise InvalidRequestError(f"the schema at #: {first_line(str(error))}") from None
        case "json_object":
            return compiler.compile_json_schema('{"type": "object"}', max_whitespace_cnt=spec.max_whitespace)
        case "regex":
            return compiler.compile_regex(as_compiled(spec.text))
        case "choice":
            rule = " | ".join(map(_quoted, json.loads(spec.text)))
            return compiler.compile_grammar(f"root ::= {rule}")
        case "structural_tag":
            return compiler.compile_structural_tag(checked_tag(_parsed(spec), spec.max_whitespace))
        case _:
            return compiler.compile_grammar(spec.text)


def _quoted(text: str) -> str:
    """A text as EBNF writes it."""
    signs = {"\\": "\\\\", '"': '\\"'}
    return '"' + "".join(signs.get(sign) or (sign if sign >= " " else f"\\x{ord(sign):02x}") for sign in text) + '"'


def _parsed(spec: GrammarSpec) -> Any:
    try:
        return json.loads(spec.text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidRequestError(f"the {spec.kind} is no JSON: {error}") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def load(payload: bytes, info: Any) -> Any:
    """A compiled grammar from its bytes."""
    return xgr.CompiledGrammar.deserialize_json(payload.decode(), info)


def new_matcher(compiled: Any) -> Any:
    """A matcher at the grammar's beginning."""
    return xgr.GrammarMatcher(compiled)


class BatchFill:
    """Fills the masks of many matchers in one call."""

    def __init__(self, max_threads: int = 1) -> None:
        self._batch = xgr.BatchGrammarMatcher(max_threads)

    def __call__(self, matchers: Sequence[Any], bitmask: Bitmask, places: Sequence[int]) -> None:
        """Matcher i writes row ``places[i]`` of ``bitmask``, int32 [rows, words]."""
        self._batch.batch_fill_next_token_bitmask(list(matchers), bitmask, list(places))
