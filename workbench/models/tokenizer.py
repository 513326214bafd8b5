"""A small face on a Hugging Face tokenizer: no hidden special tokens, exactly one BOS, readable tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from jinja2 import TemplateError

from ..errors import PromptError
from .templates import render_within_bounds

__all__ = ["Message", "Tokenizer"]

Message = Mapping[str, Any]
"""One chat message: ``{"role": "user", "content": "…"}`` and whatever else the chat template reads."""


class Tokenizer:
    """Text to token ids and back. ``hf`` is the Hugging Face tokenizer underneath.

    ``trusted`` says that its chat template comes from the workbench: it is rendered here and at once. A stranger's is
    rendered in a process of its own, within bounds of memory and time, which takes a second for the first time.
    """

    def __init__(self, hf: Any, *, eos_token_ids: Sequence[int] = (), trusted: bool = False) -> None:
        self.hf = hf
        self.trusted = trusted
        own = [] if hf.eos_token_id is None else [int(hf.eos_token_id)]
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*map(int, eos_token_ids), *own]))
        """Tokens that end a generation, in the order of the model's generation config."""
        self._texts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.hf)

    @property
    def bos_token_id(self) -> int | None:
        return None if self.hf.bos_token_id is None else int(self.hf.bos_token_id)

    @property
    def has_chat_template(self) -> bool:
        return self.hf.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` alone: nothing is put before or after it.

        :raises PromptError: a lone surrogate, which is half a character.
        """
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"the text can't be tokenised: it holds half a character ({error.reason})") from None
        try:
            return [int(i) for i in self.hf.encode(text, add_special_tokens=add_special_tokens)]
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a tokenizer's regex may give up in Rust, in no other way
                raise
            raise PromptError(f"the model's tokenizer gave up on this text: {str(error)[:200]}") from error

    def decode(self, tokens: int | Sequence[int], *, skip_special: bool = False) -> str:
        """The text of some token ids, spaces as generated. Special tokens show unless skipped."""
        ids = [tokens] if isinstance(tokens, int) else [int(i) for i in tokens]
        text = self.hf.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        return str(text)

    def token_text(self, token: int) -> str:
        """The text of one token; a token that is part of a character shows as ``<0xF0>`` bytes."""
        if token not in self._texts:
            text = self.decode([token])
            if "\ufffd" in text:
                text = _as_bytes(str(self.hf.convert_ids_to_tokens(token))) or text
            self._texts[token] = text
        return self._texts[token]

    def prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the one BOS that this tokenizer puts first, if it does.

        :raises PromptError: the text is empty.
        """
        if not text:
            raise PromptError("the prompt is empty: give some text, chat messages or token ids")
        return self._single_bos(self._ids(text, add_special_tokens=True))

    def render_chat(self, messages: Sequence[Message], *, reply: bool = True) -> str:
        """Chat messages through the model's own template; ``reply`` opens the assistant's turn.

        :raises PromptError: no messages, no template, the template refuses them, or it would never end.
        """
        if not messages:
            raise PromptError("the conversation is empty: give at least one message")
        if not self.has_chat_template:
            raise PromptError("this model has no chat template (it is a base model): give the prompt as text instead")
        if not self.trusted:
            return self._render_elsewhere(messages, reply)
        try:
            return str(
                self.hf.apply_chat_template([dict(m) for m in messages], tokenize=False, add_generation_prompt=reply)
            )
        except (TemplateError, ValueError, KeyError, TypeError) as error:
            raise PromptError(f"the model's chat template refuses these messages: {error}") from error

    def _render_elsewhere(self, messages: Sequence[Message], reply: bool) -> str:
        template = self.hf.chat_template
        if isinstance(template, Mapping):  # several by name
            template = template.get("default")
        if not isinstance(template, str):
            raise PromptError("this model's chat template is no text: give the prompt as text instead")
        return render_within_bounds(template, messages, names=self.hf.special_tokens_map, reply=reply)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer, with exactly one BOS."""
        ids = self.encode(self.render_chat(messages))
        starts = [int(i) for i in self.hf.encode("a")][:1]
        if self.bos_token_id is not None and starts == [self.bos_token_id] and ids[:1] != starts:
            ids = [self.bos_token_id, *ids]
        return self._single_bos(ids)

    def _single_bos(self, ids: list[int]) -> list[int]:
        while len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id:
            ids = ids[1:]
        return ids

    def is_special(self, token: int) -> bool:
        """True for tokens that are marks of the format, not text (end of turn, padding, …)."""
        return token in self._special

    @cached_property
    def _special(self) -> frozenset[int]:
        marked = (token for token, added in self.hf.added_tokens_decoder.items() if added.special)
        return frozenset([*map(int, marked), *map(int, self.hf.all_special_ids)])

    def special_token(self, text: str) -> int | None:
        """The id of a single token by its name, or None; checked both ways, since unknown names map to unk."""
        token = self.hf.convert_tokens_to_ids(text)
        if token is None or self.hf.convert_ids_to_tokens(token) != text:
            return None
        return int(token)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change when the vocabulary or the special tokens do."""
        digest = hashlib.sha256()
        for text, token in sorted(self.hf.get_vocab().items(), key=lambda item: (item[1], item[0])):
            digest.update(f"{token}\0{text}\0".encode("utf-8", "surrogatepass"))
        digest.update(repr((self.bos_token_id, self.eos_token_ids)).encode())
        return digest.hexdigest()[:16]


def _as_bytes(piece: str) -> str:
    """``<0xF0><0x9F>`` for a byte-level BPE piece that is not whole characters, or an empty string."""
    if piece.startswith("<0x"):
        return piece
    decoder = _byte_decoder()
    if not all(char in decoder for char in piece):
        return ""
    return "".join(f"<0x{decoder[char]:02X}>" for char in piece)


@cache
def _byte_decoder() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 byte values (Radford et al. 2019, byte-level BPE)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table
