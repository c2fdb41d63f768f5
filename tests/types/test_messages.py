import pytest

from rollart.types import ImagePart, Message, TextPart, ToolCall, open_chat

CALL = ToolCall(id="call-1", name="add", arguments={"a": 2, "b": 3})
IMAGE = ImagePart(data=b"png")


def test_text_and_images_are_told_apart():
    parts = (TextPart(text="Where "), IMAGE, TextPart(text="now?"))
    message = Message(role="user", parts=parts)
    assert (message.text, message.images) == ("Where now?", (IMAGE,))


def test_a_chat_opens_with_the_system_text_if_there_is_one():
    first = Message.of("user", "a1")
    assert open_chat("", "a1") == (first,)
    assert open_chat("Play.", "a1") == (Message.of("system", "Play."), first)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"role": "user", "calls": (CALL,)}, "of role user calls no tools"),
        ({"role": "tool"}, "has `answers` exactly if its role is tool"),
        ({"role": "user", "answers": "call-1"}, "has `answers` exactly if its role is tool"),
    ],
)
def test_a_message_that_no_model_would_write_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Message(**fields)
