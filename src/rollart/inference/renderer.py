"""Chat rendering piece by piece, for any Hugging Face chat template.

The template is rendered once with sentinels in place of the contents and cut at them; what lies
between is laid around real texts later. So a conversation grows only at its end: no earlier token
is ever encoded again, and what the policy sampled stays as sampled. For a template that does not
rewrite earlier messages the pieces joined equal its own rendering of the whole conversation.

Texts are data: the name of a special token inside a message is encoded as plain letters. Images
are refused, and so is a role that the template does not write.

A tokenizer without a template is given a plain one: `User: …⏎Assistant:`, closed by its
end-of-text token; it then needs such a token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rollart.errors import ModelError
from rollart.types import Json, Message, TextPart, ToolCall

PLAIN_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% elif m['role'] == 'user' %}User: {{ m['content'] }}\n"
    "{% else %}Assistant:{{ m['content'] }}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_FIRST, _REPLY = "Zq7one", "Zq7act"
_CACHED = 8192
_Shape: TypeAlias = tuple[tuple[str, bool, str, str], ...]
"""Messages without their texts: role, whether there is text, tool calls as JSON, what it answers"""
_USER_NEXT: _Shape = (("user", True, "", ""),)


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
        self._frames: dict[_Shape, TemplateFrame] = {}
        self._openings: dict[_Shape, TemplateFrame] = {}
        self._stop_text, stop = self._find_stop(self._follow_up(_USER_NEXT).texts[0])
        self._stop = (stop, *(i for i in self._ends() if i != stop))
        self._has_system = self._accepts_system()
        self._extend = lru_cache(_CACHED)(self._extend_anew)
        self._decode = lru_cache(_CACHED)(self._decode_anew)

    @property
    def stop(self) -> tuple[int, ...]:
        """Token ids that end an assistant's turn; the template's own comes first."""
        return self._stop

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of the opening: the messages, then the assistant's cue.

        Where the template knows no system role, the system text opens the first message.
        """
        if not self._has_system and len(messages) > 1 and messages[0].role == "system":
            joined = f"{messages[0].text}\n\n{messages[1].text}"
            parts = (TextPart(text=joined), *messages[1].images)
            messages = (replace(messages[1], parts=parts), *messages[2:])
        frame = self._opening(self._shape(messages))
        return self._encode_pieces(frame.fill(*(each.text for each in messages if each.parts)))

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Return the ids that follow a completion: its closing, the messages, the cue."""
        texts = tuple(each.text for each in messages if each.parts)
        return self._extend(self._shape(messages), texts, closed)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of plain text."""
        return self._encode_pieces([(text, False)])

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of sampled ids without special tokens."""
        return self._decode(tuple(tokens))

    def _extend_anew(self, shape: _Shape, texts: tuple[str, ...], closed: bool) -> tuple[int, ...]:
        frame = self._follow_up(shape)
        if closed:
            first = frame.texts[0].removeprefix(self._stop_text)
            frame = replace(frame, texts=(first, *frame.texts[1:]))
        return self._encode_pieces(frame.fill(*texts))

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
            backend = self._backend if is_own else self._literal
            ids += backend.encode(text, add_special_tokens=False).ids
        return tuple(ids)

    @cached_property
    def _literal(self) -> Tokenizer:
        """The tokenizer that takes the names of special tokens for plain text.

        A copy: long texts are tokenized in threads, and another one may be at work in the first.
        """
        literal = Tokenizer.from_str(self._backend.to_str())
        literal.encode_special_tokens = True
        return literal

    def _shape(self, messages: Sequence[Message]) -> _Shape:
        """Return all of the messages but their texts; refuse what no text can say."""
        for message in messages:
            if message.images:
                raise ModelError(
                    f"a message of role {message.role} holds an image, and this model's chat "
                    "template writes text only: use a model that reads images"
                )
        return tuple(
            (each.role, bool(each.parts), self._calls(each), each.answers or "")
            for each in messages
        )

    def _calls(self, message: Message) -> str:
        if not message.calls:
            return ""
        calls = [
            {"id": call.id, "type": "function", "function": _function(call)}
            for call in message.calls
        ]
        text = json.dumps(calls, ensure_ascii=False)
        # The template writes these itself, so a special token's name would become that token.
        if any(special in text for special in self._specials):
            raise ModelError("a tool call holds the name of a special token: leave it out")
        return text

    def _opening(self, shape: _Shape) -> TemplateFrame:
        if shape not in self._openings:
            messages, contents = _fill_in(shape)
            self._openings[shape] = self._cut(messages, contents)
        return self._openings[shape]

    def _follow_up(self, shape: _Shape) -> TemplateFrame:
        """Return what is written after a reply, before, between and after the contents."""
        if shape not in self._frames:
            messages, contents = _fill_in(shape)
            before = [{"role": "user", "content": _FIRST}, {"role": "assistant", "content": _REPLY}]
            frame = self._cut(before + messages, (_FIRST, _REPLY, *contents))
            self._frames[shape] = replace(frame, texts=frame.texts[2:])
        return self._frames[shape]

    def _accepts_system(self) -> bool:
        self._opening(_USER_NEXT)
        try:
            self._opening((("system", True, "", ""), *_USER_NEXT))
        except ModelError:
            return False
        return True

    def _cut(self, messages: list[dict[str, Any]], contents: tuple[str, ...]) -> TemplateFrame:
        """Render `messages` and cut at `contents`, which must appear once and in order."""
        texts = self._split(self._render(messages), contents)
        padded = [m | {"content": f" {m['content']} " if m["content"] else ""} for m in messages]
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

    def _render(self, messages: list[dict[str, Any]]) -> str:
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


def _fill_in(shape: _Shape) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return messages of a shape with sentinels as texts, and the sentinels."""
    messages: list[dict[str, Any]] = []
    contents: list[str] = []
    for number, (role, has_text, calls, answers) in enumerate(shape):
        content = f"Zq7c{number}x" if has_text else ""
        message: dict[str, Any] = {"role": role, "content": content}
        if calls:
            message["tool_calls"] = json.loads(calls)
        if answers:
            message["tool_call_id"] = answers
        messages.append(message)
        contents += [content] if has_text else []
    return messages, tuple(contents)


def _function(call: ToolCall) -> dict[str, Json]:
    return {"name": call.name, "arguments": dict(call.arguments)}
