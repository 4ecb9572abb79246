"""The bytes behind a token's text in a vocabulary, for the two ways in which vocabularies spell bytes.

Byte-level (GPT-2's ``encoder.py``, ``bytes_to_unicode``): every byte has a printable character. SentencePiece: "▁"
is a space and "<0x0A>" a byte that has no token of its own.
"""

from __future__ import annotations

import re

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def byte_characters() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies; bytes without a printable form have those from U+0100 on."""
    others = [byte for byte in range(256) if byte not in set(_PRINTABLE)]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = byte_characters()


def byte_level(text: str) -> bytes:
    """Bytes of a byte-level token; one with other characters stands for itself."""
    try:
        return bytes([_BYTES[character] for character in text])
    except KeyError:
        return text.encode()


def sentencepiece(text: str) -> bytes:
    """Bytes of a SentencePiece token."""
    if byte := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace("▁", " ").encode()
