"""Token ids equal llama.cpp's, kept in llamacpp_token_ids.json (see make_llamacpp_token_ids.py)."""

import json
from pathlib import Path

import pytest
from tiny_vocabularies import BYTE_LEVEL_KINDS, write_vocabulary
from token_texts import TEXTS

from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner.model_source import resolve_model
from callboard.runner.shipped_models import find_shipped

IDS: dict[str, list[list[int]]] = json.loads(Path(__file__).with_name("llamacpp_token_ids.json").read_text())


def tokenizer(path: Path | str) -> Tokenizer:
    return Tokenizer.from_source(resolve_model(path))


def differing(found: Tokenizer, column: str, add_special_tokens: bool = False) -> list[str]:
    pairs = zip(TEXTS, IDS[column], strict=True)
    return [text for text, ids in pairs if found.encode(text, add_special_tokens) != ids]


def test_smollm2_gives_the_ids_of_llamacpp() -> None:
    assert differing(tokenizer("smollm2"), "SmolLM2") == []


@pytest.mark.slow
@pytest.mark.skipif(isinstance(find_shipped("gemma3-270m"), str), reason=str(find_shipped("gemma3-270m")))
def test_gemma3_gives_the_ids_of_llamacpp_and_its_texts_come_back() -> None:
    found = tokenizer("gemma3-270m")
    assert found.vocab_size == 262_144
    assert differing(found, "Gemma 3") == []
    assert differing(found, "Gemma 3 with special", add_special_tokens=True) == []
    assert [found.decode(ids, skip_special_tokens=False) for ids in IDS["Gemma 3"]] == TEXTS


@pytest.mark.parametrize("kind", BYTE_LEVEL_KINDS)
def test_every_word_rule_cuts_as_llamacpp_does(tmp_path: Path, kind: str) -> None:
    assert differing(tokenizer(write_vocabulary(tmp_path / "m.gguf", kind)), kind) == []


def test_sentencepiece_gives_the_ids_of_llamacpp(tmp_path: Path) -> None:
    found = tokenizer(write_vocabulary(tmp_path / "m.gguf", "spm"))
    assert differing(found, "spm") == []
    assert differing(found, "spm with special", add_special_tokens=True) == []


def test_sentencepiece_without_a_space_prefix_gives_the_ids_of_llamacpp(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "m.gguf", "spm", add_space_prefix=False)
    assert differing(tokenizer(path), "spm without prefix") == []
