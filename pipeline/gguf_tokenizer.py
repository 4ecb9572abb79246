"""Builds the tokenizer that a GGUF file describes (``tokenizer.ggml.*``), to give the ids that llama.cpp gives.

The file holds the vocabulary and names, but does not contain, the rule that cuts a text into words; the rules here
are those of llama.cpp's ``llama-vocab.cpp``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from ..runner.gguf_file import GgufFile
from ..scheduler.errors import ModelLoadError
from .chat_template import ChatTemplate
from .token_bytes import byte_level, sentencepiece
from .tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # values of tokenizer.ggml.token_type

_SPACES = r"\s+(?!\S)|\s+"  # a run of spaces leaves its last one to the word that follows
_GPT2 = rf"'(?:[stmd]|re|ve|ll)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_SUFFIX = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"  # letters without case are in both
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _modern(digits: str) -> str:
    """Words take one leading sign, line ends stick to signs before them; numbers are cut as ``digits`` says."""
    return rf"{_SUFFIX}|{_LEAD}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"


class _Words(msgspec.Struct, frozen=True):
    """How texts are cut: each pattern cuts the pieces that the one before has left."""

    patterns: tuple[str, ...]
    whole_words: bool = False  # a word that is a token needs no merges
    adds_bos: bool = False  # when the file does not say


_DEFAULT = _Words((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_SINGLE_DIGITS = _Words((r"\p{N}", _GPT2))
_LLAMA3 = _Words((_modern(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_QWEN2 = _Words((_modern(r"\p{N}"),))
_TEKKEN = _Words(
    (
        rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}",
    ),
    whole_words=True,
    adds_bos=True,
)
WORDS: dict[str, _Words] = {
    "default": _DEFAULT,
    "gpt-2": _Words((_GPT2,)),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def from_gguf(file: GgufFile) -> Tokenizer:
    """The tokenizer of a file, with its chat template.

    Raises:
        ModelLoadError: no vocabulary, a model or word rule that is not supported, or lists that do not fit.
    """
    kind = file.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        return _byte_level(file)
    if kind == "llama":
        return _sentencepiece(file)
    raise ModelLoadError(f"{file.path}: tokenizer model {kind!r} is not supported; supported: gpt2, llama")


def _byte_level(file: GgufFile) -> Tokenizer:
    name = file.get("tokenizer.ggml.pre", str, "default")
    if name not in WORDS:
        raise ModelLoadError(f"{file.path}: pre-tokenizer {name!r} is not supported; supported: {', '.join(WORDS)}")
    words = WORDS[name]
    merges = [_pair(text) for text in file.array("tokenizer.ggml.merges", str)]
    raw = _raw(file, merges, ignore_merges=words.whole_words)
    cuts: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in words.patterns]
    _set(raw, "pre_tokenizer", PreTokenizers([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)]))
    return _finish(file, raw, to_bytes=byte_level, adds_bos=words.adds_bos, strips=False)


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # the first token has one character at least, which may be a space
    return merge[0] + left, right


def _sentencepiece(file: GgufFile) -> Tokenizer:
    tokens, types = _tokens(file), _types(file)
    scores = file.array("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise ModelLoadError(f"{file.path}: tokenizer.ggml.scores has {len(scores)} values for {len(tokens)} tokens")
    unknown = tokens[_id(file, "unknown", len(tokens)) or 0]
    raw = _raw(file, _merges(tokens, types, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefixed = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = Replace(" ", "▁")
    _set(raw, "normalizer", Normalizers([Prepend("▁"), spaces]) if prefixed else spaces)
    return _finish(file, raw, to_bytes=sentencepiece, adds_bos=True, strips=prefixed)


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best score first: SentencePiece's own order of merging."""
    known = set(tokens)
    found: list[tuple[float, str, str]] = []
    for token, kind, score in zip(tokens, types, scores, strict=True):
        if kind == _NORMAL:
            cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
            found += [(score, left, right) for left, right in cuts if left in known and right in known]
    found.sort(key=lambda merge: -merge[0])
    return [(left, right) for _, left, right in found]


def _raw(file: GgufFile, merges: list[tuple[str, str]], **options: Any) -> RawTokenizer:
    tokens = _tokens(file)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelLoadError(f"{file.path}: {len(tokens) - len(vocabulary)} tokens of the vocabulary appear twice")
    try:
        return RawTokenizer(BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{file.path}: the vocabulary does not hold together: {error}") from error


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.array("tokenizer.ggml.tokens", str)
    return [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]


def _types(file: GgufFile) -> list[int]:
    count = len(file.array("tokenizer.ggml.tokens", str))
    types = file.array("tokenizer.ggml.token_type", int, [_NORMAL] * count)
    if len(types) != count:
        raise ModelLoadError(f"{file.path}: tokenizer.ggml.token_type has {len(types)} values for {count} tokens")
    return types


def _finish(file: GgufFile, raw: RawTokenizer, *, to_bytes: Any, adds_bos: bool, strips: bool) -> Tokenizer:
    tokens, types = _tokens(file), _types(file)
    special = [i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)]
    whole = [i for i, kind in enumerate(types) if kind == _USER_DEFINED]  # never cut, but text like any other
    _add(raw, [tokens[i] for i in special], special=True)
    _add(raw, [tokens[i] for i in whole], special=False)
    bos, eos = _id(file, "bos", len(tokens)), _id(file, "eos", len(tokens))
    adds_bos = file.get("tokenizer.ggml.add_bos_token", bool, adds_bos)
    ends = (_id(file, name, len(tokens)) for name in ("eos", "eot", "eom"))
    return Tokenizer(
        raw,
        to_bytes=to_bytes,
        special_ids=special,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        prefix=_wanted(file, "bos", bos, adds_bos),
        suffix=_wanted(file, "eos", eos, file.get("tokenizer.ggml.add_eos_token", bool, False)),
        strips_first_space=strips,
        template=_template(file, tokens),
    )


def _add(raw: RawTokenizer, texts: list[str], special: bool) -> None:
    library: Any = raw  # its stubs leave the element type open
    library.add_tokens([AddedToken(text, special=special, normalized=False) for text in texts])


def _set(raw: RawTokenizer, part: str, value: object) -> None:
    setattr(raw, part, value)  # the library's stubs have a getter only


def _id(file: GgufFile, name: str, count: int) -> int | None:
    found = file.maybe(f"tokenizer.ggml.{name}_token_id", int)
    if found is None or 0 <= found < count:
        return found
    raise ModelLoadError(f"{file.path}: {name}_token_id is {found}, but the vocabulary has {count} tokens")


def _wanted(file: GgufFile, name: str, token_id: int | None, wanted: bool) -> list[int]:
    if wanted and token_id is None:
        raise ModelLoadError(f"{file.path}: texts need a {name} token, but the file names none")
    return [token_id] if wanted and token_id is not None else []


def _template(file: GgufFile, tokens: list[str]) -> ChatTemplate | None:
    start = "tokenizer.chat_template"
    texts = {key[len(start) + 1 :]: file.get(key, str) for key in file.metadata if key.startswith(f"{start}.")}
    if start in file.metadata:
        texts["default"] = file.get(start, str)
    names = ("bos", "eos", "unknown", "padding")
    ids = {name: _id(file, name, len(tokens)) for name in names}
    short = {"unknown": "unk", "padding": "pad"}
    variables = {f"{short.get(name, name)}_token": tokens[i] for name, i in ids.items() if i is not None}
    return ChatTemplate(texts, variables) if texts else None
