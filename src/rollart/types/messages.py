"""Messages: a conversation as roles and parts, before anything is rendered to tokens.

A message is text and images in order, the tool calls an assistant asks for, or the result of one.
Which of these a model can read is the renderer's business: one for text alone refuses images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rollart.types.core import Json

Role = Literal["system", "user", "assistant", "tool"]
"""Who speaks: the instructions, the environment, the policy, or a tool's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of text.

    Example:
        TextPart(text="You are at (0, 0).")

    """

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image, as the bytes of its file.

    Example:
        ImagePart(data=Path("board.png").read_bytes(), media_type="image/png")

    """

    data: bytes
    media_type: str = "image/png"


Part: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call an assistant asks for.

    Example:
        ToolCall(id="call-1", name="add", arguments={"a": 2, "b": 3})

    """

    id: str
    """Names the call in its result."""
    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    Example:
        Message.of("user", "What is 2 + 3?")
        Message(role="assistant", calls=(ToolCall(id="call-1", name="add",
                                                  arguments={"a": 2, "b": 3}),))
        Message(role="tool", parts=(TextPart(text="5"),), answers="call-1")

    """

    role: Role
    parts: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    """Tools the assistant asks for; only with the role `assistant`."""
    answers: str | None = None
    """The id of the call this is the result of; only with the role `tool`."""

    def __post_init__(self) -> None:
        if self.calls and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} calls no tools: use role assistant")
        if (self.answers is not None) != (self.role == "tool"):
            raise ValueError("a message has `answers` exactly if its role is tool")

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """Return a message of text alone."""
        return cls(role=role, parts=(TextPart(text=text),))

    @property
    def text(self) -> str:
        """The text of its parts, joined; images are left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """Its images, in order."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))


def open_chat(system: str, text: str) -> tuple[Message, ...]:
    """Return the messages that open a conversation; an empty system text makes none.

    Example:
        open_chat("You walk on ice.", "a1")

    """
    first = Message.of("user", text)
    return (Message.of("system", system), first) if system else (first,)
