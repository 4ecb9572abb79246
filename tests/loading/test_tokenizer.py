"""Special tokens stay whole, beginning tokens are not doubled, and threads may share a tokenizer."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tiny_models import LLAMA, finish, gguf_writer
from tiny_vocabularies import byte_characters, write_vocabulary
from token_texts import TEXTS
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer
from vocabularies import byte_ids, smollm2, tiny

from callboard.pipeline.tokenizer import Tokenizer
from callboard.runner.gguf_file import GgufFile
from callboard.runner.model_source import resolve_model
from callboard.scheduler.errors import InvalidRequestError, ModelLoadError


def raw_tokenizer() -> RawTokenizer:
    """Byte-level without merges, with <s> put first and <think> added but not special."""
    raw = RawTokenizer(models.BPE({text: i for i, text in enumerate(byte_characters())}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=False)])
    raw.add_tokens([AddedToken("<think>", normalized=False)])
    raw.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 256)])
    return raw


def write_tokenizer(path: Path, raw: RawTokenizer, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(LLAMA))
    raw.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | config))
    return path


def from_folder(path: Path, raw: RawTokenizer, **config: Any) -> Tokenizer:
    return Tokenizer.from_source(resolve_model(write_tokenizer(path, raw, **config)))


def test_the_tokenizer_of_a_gguf_file_states_its_tokens() -> None:
    found = smollm2()
    assert (found.vocab_size, found.bos_token_id, found.eos_token_ids) == (49152, 1, (2,))
    assert found.special_ids == set(range(17))
    assert (found.token_text(1), found.token_text(253), found.token_text(49152)) == ("<|im_start|>", "Ġa", None)
    assert found.token_bytes(253) == b" a"


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_survives_encoding_and_decoding(text: str) -> None:
    for found in (smollm2(), tiny("llama-bpe"), tiny("default"), tiny("spm", add_space_prefix=False)):
        assert found.decode(found.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", [text for text in TEXTS if "<|" not in text and "<think>" not in text])
def test_a_space_prefix_is_not_in_the_decoded_text(text: str) -> None:
    assert tiny("spm").decode(tiny("spm").encode(text)) == text


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "spm"])
@pytest.mark.parametrize("token", ["<think>", "<|im_end|>"])
@pytest.mark.parametrize("form", ["{0}", "a{0}b", "a {0}", "{0}{0}", "{0} end", "\n{0}"])
def test_added_tokens_are_whole_wherever_they_stand(kind: str, token: str, form: str) -> None:
    found = tiny(kind)
    ids = found.encode(form.format(token), add_special_tokens=False)
    assert [found.token_text(i) for i in ids].count(token) == form.count("{0}")


@pytest.mark.parametrize("kind", ["gpt-2", "spm"])
def test_control_tokens_are_hidden_and_user_defined_ones_are_not(kind: str) -> None:
    found = tiny(kind)
    ids = found.encode("<|im_start|>a<think>b</think><|im_end|>", add_special_tokens=False)
    shown = found.decode(ids)
    assert "<think>" in shown
    assert "<|im" not in shown
    assert "<|im_end|>" in found.decode(ids, skip_special_tokens=False)


def test_a_beginning_token_is_added_by_flag_and_never_doubled() -> None:
    found = tiny("llama-bpe")  # this kind adds one unless the file says otherwise
    plain = found.encode("Hello", add_special_tokens=False)
    assert found.encode("Hello") == [0, *plain]
    assert found.encode("<|bos|>Hello") == [0, *plain]
    assert tiny("llama-bpe", add_bos_token=False).encode("Hello") == plain
    assert tiny("qwen2").encode("Hello") == tiny("qwen2").encode("Hello", add_special_tokens=False)
    assert tiny("qwen2", add_eos_token=True).encode("")[-1] == 2


def test_an_empty_text_is_the_beginning_token_alone_or_nothing() -> None:
    assert tiny("llama-bpe").encode("") == [0]
    assert tiny("qwen2").encode("") == []


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="prompt is no valid text"):
        smollm2().encode("a\ud83d")


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    found = smollm2()
    assert found.decode([*found.encode("ab"), 10**6, -1]) == "ab"


def test_threads_share_a_tokenizer() -> None:
    found = smollm2()
    expected = [found.encode(text) for text in TEXTS]

    def work(_: int) -> bool:
        ids = [found.encode(text) for text in TEXTS]
        return ids == expected and [found.decode(i, skip_special_tokens=False) for i in ids] == TEXTS

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(64)))


def write_broken(path: Path, **fields: Any) -> GgufFile:
    writer = gguf_writer(path, LLAMA)
    for name, value in fields.items():
        add = writer.add_array if isinstance(value, list) else writer.add_string
        add(f"tokenizer.ggml.{name}", value)
    finish(writer)
    return GgufFile(path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "metadata has no tokenizer.ggml.model"),
        ({"model": "bert"}, "tokenizer model 'bert' is not supported; supported: gpt2, llama"),
        (
            {"model": "gpt2", "pre": "viking"},
            "pre-tokenizer 'viking' is not supported; supported: default, gpt-2, smollm",
        ),
        ({"model": "gpt2"}, "metadata has no tokenizer.ggml.merges"),
        ({"model": "gpt2", "merges": ["a b"]}, "metadata has no tokenizer.ggml.tokens"),
        ({"model": "gpt2", "merges": ["a b"], "tokens": ["a", "a"]}, "1 tokens of the vocabulary appear twice"),
        ({"model": "gpt2", "merges": ["a b"], "tokens": ["a"]}, "the vocabulary does not hold together"),
        ({"model": "gpt2", "merges": ["a b"], "tokens": [1, 2]}, "tokenizer.ggml.tokens holds 1, expected str"),
        ({"model": "llama", "tokens": ["a"], "scores": [1.0, 2.0]}, "scores has 2 values for 1 tokens"),
    ],
)
def test_a_broken_vocabulary_is_refused_with_a_reason(tmp_path: Path, fields: dict, reason: str) -> None:
    path = tmp_path / "m.gguf"
    write_broken(path, **fields)
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_source(resolve_model(path))
    assert reason in str(caught.value)


def test_a_file_without_a_rule_for_words_uses_the_default_one(tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "m.gguf", "default")
    content = path.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.abc")
    path.write_bytes(content)
    assert Tokenizer.from_source(resolve_model(path)).encode("x1y22z") == tiny("default").encode("x1y22z")


def test_a_folder_gives_the_ids_and_texts_of_its_tokenizer_json(tmp_path: Path) -> None:
    raw = raw_tokenizer()
    found = from_folder(tmp_path / "m", raw)
    for text in TEXTS:
        ids = raw.encode(text).ids
        assert found.encode(text) == ids
        assert found.decode(ids) == raw.decode(ids) == text
    assert (found.bos_token_id, found.eos_token_ids, found.special_ids) == (256, (257,), {256, 257})
    assert found.encode("<s>a") == [256, *byte_ids(found, b"a")]


def test_truncation_and_padding_of_a_tokenizer_json_are_ignored(tmp_path: Path) -> None:
    raw = raw_tokenizer()
    raw.enable_truncation(4)
    raw.enable_padding(length=100)
    assert len(from_folder(tmp_path / "m", raw).encode("0123456789")) == 11


def test_a_sentencepiece_folder_drops_the_first_space_only(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    raw = RawTokenizer(models.BPE({text: i for i, text in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    found = from_folder(tmp_path / "m", raw)
    ids = [259, 260, 259, 261, 3 + 0xC3, 3 + 0xA9]
    assert found.decode(ids) == raw.decode(ids) == "a bé"


@pytest.mark.parametrize(("decoder", "name"), [(decoders.WordPiece(), "WordPiece"), (None, "none")])
def test_another_decoder_is_refused_by_name(tmp_path: Path, decoder: Any, name: str) -> None:
    raw = RawTokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        raw.decoder = decoder
    with pytest.raises(ModelLoadError, match=f"decoder {name} is not supported; supported: ByteLevel, Metaspace"):
        from_folder(tmp_path / "m", raw)


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        Tokenizer.from_source(resolve_model(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is damaged"):
        Tokenizer.from_source(resolve_model(tmp_path))


def test_templates_of_a_folder_come_from_the_file_before_the_configuration(tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    found = from_folder(tmp_path / "m", raw_tokenizer(), chat_template="{{ bos_token }}{{ messages[0].content }}")
    assert found.apply_chat_template(hello) == "<s>Hi"
    (tmp_path / "m" / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
    found = Tokenizer.from_source(resolve_model(tmp_path / "m"))
    assert found.apply_chat_template(hello) == "file: Hi"


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="the model has no chat template"):
        from_folder(tmp_path / "m", raw_tokenizer()).apply_chat_template([{"role": "user", "content": "Hi"}])


def test_the_template_of_smollm2_is_rendered() -> None:
    found = smollm2()
    text = found.apply_chat_template([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected
    assert found.encode(text, add_special_tokens=False).count(1) == 3
