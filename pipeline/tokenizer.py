"""Text to token ids and back, for every source of a vocabulary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..scheduler.errors import InvalidRequestError

# Seconds for one message; those of real models take some 50 us.
SLOW_TEMPLATE = 0.05

if TYPE_CHECKING:
    import tokenizers

    from ..runner.model_source import ModelSource
    from .chat_template import ChatTemplate


class Tokenizer:
    """Holds no state between calls, so threads may share it.

    Encoding is the Rust library's. Decoding is here and by bytes: the text of ids is the UTF-8 decoding of their
    bytes in a row, where what is no UTF-8 becomes U+FFFD as Unicode recommends (one for each longest piece that
    could have begun a character). That rule looks at no more than 3 bytes back, so it holds for a stream as well.

    Args:
        raw: encodes; without truncation or padding.
        to_bytes: the bytes of a vocabulary entry's text.
        special_ids: tokens that ``skip_special_tokens`` hides.
        bos_token_id: beginning token, if there is one.
        eos_token_ids: tokens that the tokenizer's files call an end.
        prefix: ids put before a text whose special tokens are asked for, when ``raw`` does not do it.
        suffix: ids put after it.
        strips_first_space: the vocabulary writes a text's first word with a space that is not in the text.
        template: turns messages into a prompt.
    """

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        *,
        to_bytes: Callable[[str], bytes],
        special_ids: Iterable[int] = (),
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        strips_first_space: bool = False,
        template: ChatTemplate | None = None,
    ) -> None:
        self._raw = raw
        self._to_bytes = to_bytes
        self._added: dict[int, str] = {i: token.content for i, token in raw.get_added_tokens_decoder().items()}
        self._bytes: dict[int, bytes] = {}
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.special_ids = frozenset(special_ids)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self.strips_first_space = strips_first_space
        self.template = template
        self.has_slow_template = False  # whether even one message takes longer than the host's loop can spare

    @classmethod
    def from_source(cls, source: ModelSource) -> Tokenizer:
        """The tokenizer in a model's files.

        Raises:
            ModelLoadError: none there, damaged, or of a kind that is not supported.
        """
        if source.is_gguf:
            from .gguf_tokenizer import from_gguf  # noqa: PLC0415  imports the Rust library

            return from_gguf(source.gguf)
        from .hf_tokenizer import from_folder  # noqa: PLC0415  imports the Rust library

        return from_folder(source.folder)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's own may be larger."""
        return self._raw.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Special tokens that the text spells out are recognized.

        Args:
            add_special_tokens: put the model's beginning (and end) token, where it wants one; never a second
                beginning token before one that the text has already.

        Raises:
            InvalidRequestError: the text holds half of a surrogate pair, which no UTF-8 can express.
        """
        try:
            ids = self._raw.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(f"prompt is no valid text: {error}") from None
        if not add_special_tokens:
            return ids
        ids = [*self._prefix, *ids, *self._suffix]
        doubled = self.bos_token_id is not None and ids[:2] == [self.bos_token_id] * 2
        return ids[1:] if doubled else ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; ids outside the vocabulary have none."""
        data = self.join_bytes(ids, skip_special_tokens)
        return self.strip_first(data).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it ("Ġthe"), or None outside the vocabulary."""
        return self._raw.id_to_token(token_id) if token_id >= 0 else None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; those of an added token are its text's."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._find_bytes(token_id)
        return found

    def join_bytes(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        """Bytes of all ids in a row."""
        hidden = self.special_ids if skip_special_tokens else ()
        return b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in hidden])

    def strip_first(self, data: bytes) -> bytes:
        """The beginning of a text without the space that the vocabulary put there."""
        return data[1:] if self.strips_first_space and data.startswith(b" ") else data

    def apply_chat_template(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation, to be encoded without adding special tokens.

        Raises:
            InvalidRequestError: the model has no template; messages of the wrong form; an error in the template, or
                raised by it.
        """
        if self.template is None:
            raise InvalidRequestError("the model has no chat template: give a prompt")
        text = self.template.render(messages, add_generation_prompt, tools, **variables)
        if self._prefix and self.bos_token_id == self._prefix[0]:  # GGUF: the flag holds for templates too
            bos = self._added.get(self._prefix[0], "")
            return text if text.startswith(bos) else bos + text
        return text

    def warm_up(self) -> None:
        """Compile the chat template, and learn whether it is slow; its errors are those of who uses it."""
        if self.template is None:
            return
        began = time.perf_counter()
        with suppress(InvalidRequestError):
            self.template.render([{"role": "user", "content": "a"}])
            began = time.perf_counter()
            self.template.render([{"role": "user", "content": "a"}])
        self.has_slow_template = time.perf_counter() - began > SLOW_TEMPLATE

    def _find_bytes(self, token_id: int) -> bytes:
        if (added := self._added.get(token_id)) is not None:
            return added.encode()
        text = self.token_text(token_id)
        return b"" if text is None else self._to_bytes(text)
