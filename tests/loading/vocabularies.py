"""Tokenizers for tests, made once each."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tiny_vocabularies import write_vocabulary

from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner.model_source import resolve_model


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_source(resolve_model("smollm2"))


@cache
def tiny(kind: str, **flags: bool) -> Tokenizer:
    """Of a tiny vocabulary: a byte-level one, or "spm"."""
    with TemporaryDirectory() as folder:
        return Tokenizer.from_source(resolve_model(write_vocabulary(Path(folder) / "m.gguf", kind, **flags)))


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    single = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [single[bytes([byte])] for byte in data]
