"""Chat rendering piece by piece, for any Hugging Face chat template.

The template is rendered once with sentinels in place of the contents and cut at them; what lies
between is laid around real texts later. So a conversation grows only at its end: no earlier token
is ever encoded again, and what the policy sampled stays as sampled. For a template that does not
rewrite earlier messages the pieces joined equal its own rendering of the whole conversation.

Texts are data: the name of a special token inside an observation is encoded as plain letters.

A tokenizer without a template is given a plain one: `User: …⏎Assistant:`, closed by its
end-of-text token; it then needs such a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from rollart.errors import ModelError

PLAIN_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% elif m['role'] == 'user' %}User: {{ m['content'] }}\n"
    "{% else %}Assistant:{{ m['content'] }}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_SYSTEM, _FIRST, _REPLY, _NEXT = ("Zq7sys", "Zq7one", "Zq7act", "Zq7two")
_CACHED = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFrame:
    """A template cut at the contents: what is written before, between and after them."""

    texts: tuple[str, ...]
    strips: bool
    """Whether the template strips white space around contents."""

    def fill(self, *contents: str) -> list[tuple[str, bool]]:
        """Return the pieces in order, each with whether it is the template's own."""
        pieces = [(self.texts[0], True)]
        for content, text in zip(contents, self.texts[1:], strict=True):
            pieces += [(content.strip() if self.strips else content, False), (text, True)]
        return pieces


class ChatRenderer:
    """Implements the Renderer port over a tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        template = tokenizer.chat_template
        self._template = template if isinstance(template, str) else PLAIN_TEMPLATE
        if not template and tokenizer.eos_token is None:
            raise ModelError("the tokenizer has neither a chat template nor an end-of-text token")
        self._specials = tuple(tokenizer.get_added_vocab())
        user = {"role": "user", "content": _FIRST}
        system = {"role": "system", "content": _SYSTEM}
        self._alone = self._cut([user], (_FIRST,))
        self._opening = self._cut_system([system, user])
        reply = {"role": "assistant", "content": _REPLY}
        after = {"role": "user", "content": _NEXT}
        closing, cue = self._cut([user, reply, after], (_REPLY, _NEXT)).texts[1:]
        self._stop_text, stop = self._find_stop(closing)
        self._stop = (stop, *(i for i in self._ends() if i != stop))
        strips = self._alone.strips
        opened = closing.removeprefix(self._stop_text)
        self._after_closed = TemplateFrame(texts=(opened, cue), strips=strips)
        self._after_open = TemplateFrame(texts=(self._stop_text + opened, cue), strips=strips)
        self._extend = lru_cache(_CACHED)(self._extend_anew)
        self._decode = lru_cache(_CACHED)(self._decode_anew)

    @property
    def stop(self) -> tuple[int, ...]:
        """Token ids that end an assistant's turn; the template's own comes first."""
        return self._stop

    def start(self, system: str, observation: str) -> tuple[int, ...]:
        """Return the ids of the opening: system text, first observation, the assistant's cue."""
        if not system:
            return self._encode_pieces(self._alone.fill(observation))
        if self._opening is None:
            return self._encode_pieces(self._alone.fill(f"{system}\n\n{observation}"))
        return self._encode_pieces(self._opening.fill(system, observation))

    def extend(self, observation: str, *, closed: bool) -> tuple[int, ...]:
        """Return the ids that follow a completion: its closing, an observation, the cue."""
        return self._extend(observation, closed)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of plain text."""
        return self._encode_pieces([(text, False)])

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of sampled ids without special tokens."""
        return self._decode(tuple(tokens))

    def _extend_anew(self, observation: str, closed: bool) -> tuple[int, ...]:
        frame = self._after_closed if closed else self._after_open
        return self._encode_pieces(frame.fill(observation))

    def _decode_anew(self, tokens: tuple[int, ...]) -> str:
        return self._backend.decode(list(tokens), skip_special_tokens=True)

    def _encode_pieces(self, pieces: list[tuple[str, bool]]) -> tuple[int, ...]:
        """Encode the joined pieces; names of special tokens in contents stay plain text."""
        contents = [text for text, is_own in pieces if not is_own]
        if not any(special in text for text in contents for special in self._specials):
            text = "".join(text for text, _ in pieces)
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for text, is_own in pieces:
            self._backend.encode_special_tokens = not is_own
            ids += self._backend.encode(text, add_special_tokens=False).ids
        self._backend.encode_special_tokens = False
        return tuple(ids)

    def _cut_system(self, messages: list[dict[str, str]]) -> TemplateFrame | None:
        """Cut an opening with a system message; None if the template knows no such role."""
        try:
            return self._cut(messages, (_SYSTEM, _FIRST))
        except ModelError:
            return None

    def _cut(self, messages: list[dict[str, str]], contents: tuple[str, ...]) -> TemplateFrame:
        """Render `messages` and cut at `contents`, which must appear once and in order."""
        texts = self._split(self._render(messages), contents)
        padded = [m | {"content": f" {m['content']} "} for m in messages]
        strips = self._split(self._render(padded), contents)[-1] == texts[-1]
        return TemplateFrame(texts=texts, strips=strips)

    def _split(self, text: str, contents: tuple[str, ...]) -> tuple[str, ...]:
        texts: list[str] = []
        for content in contents:
            before, found, text = text.partition(content)
            if not found or content in text:
                raise ModelError("the chat template does not write each message once and in order")
            texts.append(before)
        return (*texts, text)

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise ModelError(f"the chat template fails: {error}") from error
        assert isinstance(text, str)
        return text

    def _find_stop(self, closing: str) -> tuple[str, int]:
        """Return the special token that closes an assistant's message, as text and id."""
        for token, index in self._tokenizer.get_added_vocab().items():
            if closing.startswith(token):
                return token, index
        raise ModelError("the chat template closes the assistant's message with no special token")

    def _ends(self) -> tuple[int, ...]:
        end = self._tokenizer.eos_token_id
        return (end,) if isinstance(end, int) else ()
