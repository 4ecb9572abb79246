"""Loads the tokenizer of a Hugging Face folder: ``tokenizer.json``, ``tokenizer_config.json``, templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from tokenizers import Tokenizer as RawTokenizer

from ..runner.hf_folder import HfFolder
from ..scheduler.errors import ModelLoadError
from .chat_template import ChatTemplate
from .token_bytes import byte_level, sentencepiece
from .tokenizer import Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class _Decoder(msgspec.Struct):
    """A step of the way from token texts to text, as ``tokenizer.json`` has it."""

    type: str
    decoders: list[_Decoder] = []
    start: int = 0  # of Strip
    prepend_scheme: str = "always"  # of Metaspace


class _Outline(msgspec.Struct):
    """What is read from ``tokenizer.json`` besides what the library reads."""

    decoder: _Decoder | None = None


def from_folder(folder: HfFolder) -> Tokenizer:
    """The tokenizer of a folder, with its chat templates.

    Raises:
        ModelLoadError: no ``tokenizer.json``, a damaged one, or one whose decoder is not supported.
    """
    text = folder.text("tokenizer.json")
    if text is None:
        raise ModelLoadError(f"{folder.path} has no tokenizer.json (other vocabulary files are not read)")
    try:
        outline = msgspec.json.decode(text, type=_Outline)
        raw = RawTokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{folder.path / 'tokenizer.json'} is damaged: {error}") from error
    raw.no_truncation()
    raw.no_padding()
    to_bytes, strips = _spelling(folder, outline.decoder)
    named = _named_tokens(folder)
    ids = {name: raw.token_to_id(token) for name, token in named.items()}
    special = {i for i, token in raw.get_added_tokens_decoder().items() if token.special}
    eos = ids.get("eos_token")
    return Tokenizer(
        raw,
        to_bytes=to_bytes,
        special_ids=special | {i for i in ids.values() if i is not None},
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=() if eos is None else (eos,),
        strips_first_space=strips,
        template=_templates(folder, named),
    )


def _spelling(folder: HfFolder, decoder: _Decoder | None) -> tuple[Callable[[str], bytes], bool]:
    """How tokens spell bytes, and whether the first space is dropped."""
    steps = [] if decoder is None else decoder.decoders if decoder.type == "Sequence" else [decoder]
    kinds = [step.type for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level, False
    if kinds == ["Metaspace"]:
        return sentencepiece, steps[0].prepend_scheme != "never"
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
        return sentencepiece, any(step.start for step in steps)
    got = ", ".join(kinds) or "none"
    raise ModelLoadError(
        f"{folder.path / 'tokenizer.json'}: decoder {got} is not supported; supported: ByteLevel, Metaspace, "
        "and Replace with ByteFallback, Fuse and Strip"
    )


def _config(folder: HfFolder) -> dict[str, Any]:
    return folder.json("tokenizer_config.json") or {}


def _named_tokens(folder: HfFolder) -> dict[str, str]:
    """The texts of the tokens that have a part to play; a token is a string or an object with its content."""
    values = {**(folder.json("special_tokens_map.json") or {}), **_config(folder)}
    found: dict[str, str] = {}
    for name in _NAMED:
        value: Any = values.get(name)
        content: Any = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _templates(folder: HfFolder, named: Mapping[str, str]) -> ChatTemplate | None:
    """A file of its own comes before the one in the configuration, which may be a list of named ones."""
    found: Any = folder.text("chat_template.jinja") or _config(folder).get("chat_template")
    try:
        if isinstance(found, list):
            entries = msgspec.convert(found, list[dict[str, str]])
            return ChatTemplate({entry["name"]: entry["template"] for entry in entries}, named)
        return None if found is None else ChatTemplate({"default": msgspec.convert(found, str)}, named)
    except (msgspec.ValidationError, KeyError) as error:
        raise ModelLoadError(f"{folder.path}: chat_template is damaged: {error}") from error
