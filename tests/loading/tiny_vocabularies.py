"""Writes tiny GGUF models whose vocabularies merge across word boundaries, so that every cut shows in the ids.

Needs only ``gguf`` and ``numpy``: llama.cpp can load the files too.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
from token_texts import TEXTS

BYTE_LEVEL_KINDS = ("default", "gpt-2", "smollm", "llama-bpe", "qwen2", "tekken")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
_HIDDEN = 32


def write_vocabulary(path: Path, kind: str, **flags: bool) -> Path:
    """A model with a byte-level vocabulary cut by ``kind``, or with a SentencePiece one for "spm"."""
    writer = gguf.GGUFWriter(path, "llama")
    count = _add_sentencepiece(writer) if kind == "spm" else _add_byte_level(writer, kind)
    for flag, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{flag}", value)
    _add_model(writer, count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def train(symbols: list[str], count: int) -> list[tuple[str, str]]:
    """The ``count`` merges that byte-pair encoding learns from one row of symbols; ties go by spelling."""
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(pairwise(symbols))
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        symbols = _merged(symbols, best)
    return merges


def _merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(symbols):
        if tuple(symbols[at : at + 2]) == pair:
            out.append(symbols[at] + symbols[at + 1])
            at += 2
        else:
            out.append(symbols[at])
            at += 1
    return out


def byte_characters() -> list[str]:
    """The character of each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _add_byte_level(writer: gguf.GGUFWriter, kind: str) -> int:
    characters = byte_characters()
    merges = train([characters[byte] for byte in "\n".join(TEXTS * 2).encode()], 400)
    named = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tokens = [*named, *characters, *("".join(pair) for pair in merges)]
    tokens = list(dict.fromkeys(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([*[CONTROL] * 3, *[USER_DEFINED] * 2, *[NORMAL] * (len(tokens) - 5)])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    return len(tokens)


def _add_sentencepiece(writer: gguf.GGUFWriter) -> int:
    text = "▁" + "".join(TEXTS).replace(" ", "▁")
    text = "".join(character for character in text if 0x20 < ord(character) < 0x500 or character == "▁")
    merges = train(list(text), 400)
    named = ["<unk>", "<s>", "</s>", "<think>", "</think>", "<|im_start|>", "<|im_end|>"]
    pieces = [piece for piece in dict.fromkeys("".join(pair) for pair in merges) if piece not in named]
    letters = sorted(set(text))
    tokens = [*named, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *letters]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    types = [UNKNOWN, CONTROL, CONTROL, USER_DEFINED, USER_DEFINED, CONTROL, CONTROL]
    writer.add_token_types([*types, *[BYTE] * 256, *[NORMAL] * (len(pieces) + len(letters))])
    writer.add_token_scores([0.0] * 263 + [-float(i) for i in range(len(pieces) + len(letters))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)


def _add_model(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    zeros, ones = np.zeros((_HIDDEN, _HIDDEN), np.float32), np.ones(_HIDDEN, np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((vocabulary, _HIDDEN), np.float32))
    writer.add_tensor("output_norm.weight", ones)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", ones)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros)
