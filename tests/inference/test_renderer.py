from dataclasses import replace

import pytest
from chat_templates import (
    CORPUS,
    NO_SYSTEM,
    chatml_tokenizer,
    llama3_tokenizer,
    tiny_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.errors import ModelError
from rollart.inference.renderer import ChatRenderer
from rollart.types import ImagePart, Message, TextPart, ToolCall, open_chat

TOKENIZERS = {
    "tiny": tiny_tokenizer(),
    "chatml": chatml_tokenizer(),
    "llama3": llama3_tokenizer(),
}
RENDERERS = {name: ChatRenderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}
names = pytest.mark.parametrize("name", TOKENIZERS)


def whole(name, messages) -> tuple[int, ...]:
    tokenizer = TOKENIZERS[name]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def said(text):
    return (Message.of("user", text),)


def say(role, content):
    return {"role": role, "content": content}


@names
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("system", [CORPUS[0], ""])
def test_the_pieces_joined_are_the_templates_own_rendering(name, closed, system):
    renderer = RENDERERS[name]
    messages = [say("system", system)] if system else []
    tokens = renderer.start(open_chat(system, CORPUS[1]))
    messages.append(say("user", CORPUS[1]))
    assert tokens == whole(name, messages)
    for action, observation in (("down", "a2"), ("right", " two\nlines "), ("über", "b2")):
        tokens += renderer.encode(action) + ((renderer.stop[0],) if closed else ())
        tokens += renderer.extend(said(observation), closed=closed)
        messages += [say("assistant", action), say("user", observation)]
    assert tokens == whole(name, messages)


plain = st.text(max_size=20).filter(lambda text: "<|" not in text)
"""Texts without names of special tokens: the renderer takes those for letters, on purpose."""


@names
@settings(deadline=None, max_examples=50)
@given(plain, plain)
def test_any_observation_is_rendered_as_the_template_would(name, first, later):
    renderer = RENDERERS[name]
    tokens = renderer.start(open_chat("", first)) + renderer.encode("up") + (renderer.stop[0],)
    tokens += renderer.extend(said(later), closed=True)
    assert tokens == whole(name, [say("user", first), say("assistant", "up"), say("user", later)])


@pytest.mark.parametrize(
    ("name", "stop"),
    [("tiny", ["<|end|>"]), ("chatml", ["<|im_end|>"]), ("llama3", ["<|eot_id|>", "<|eos|>"])],
)
def test_the_stop_tokens_are_the_templates_and_the_end_of_text(name, stop):
    assert TOKENIZERS[name].convert_ids_to_tokens(RENDERERS[name].stop) == stop


@names
def test_decoding_leaves_out_special_tokens(name):
    renderer = RENDERERS[name]
    assert renderer.decode((*renderer.encode("déjà down\n"), *renderer.stop)) == "déjà down\n"


@names
def test_the_name_of_a_special_token_in_an_observation_stays_text(name):
    renderer = RENDERERS[name]
    stop = TOKENIZERS[name].convert_ids_to_tokens(renderer.stop[0])
    tokens = renderer.extend(said(f"say {stop} now"), closed=True)
    plain = renderer.extend(said("say nothing now"), closed=True)
    assert tokens.count(renderer.stop[0]) == plain.count(renderer.stop[0])
    assert f"say {stop} now" in TOKENIZERS[name].decode(tokens)
    assert renderer.extend(said("plain"), closed=False)[0] == renderer.stop[0]


def test_without_a_system_role_the_system_text_opens_the_first_observation():
    renderer = ChatRenderer(chatml_tokenizer(NO_SYSTEM))
    assert renderer.start(open_chat("Be brief.", "a1")) == renderer.start(
        open_chat("", "Be brief.\n\na1")
    )


def test_a_tokenizer_without_a_template_gets_a_plain_one():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    renderer = ChatRenderer(tokenizer)
    tokens = renderer.start(open_chat("Play.", "a1")) + renderer.encode("up") + (renderer.stop[0],)
    tokens += renderer.extend(said("a2"), closed=True)
    assert tokenizer.decode(tokens) == (
        "Play.\n\nUser: a1\nAssistant:up<|end|>\nUser: a2\nAssistant:"
    )


def test_a_tokenizer_with_neither_template_nor_end_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="neither a chat template nor an end-of-text token"):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0]['content'] }}", "does not write each message once"),
        ("{{ raise_exception('no') }}", "the chat template fails: no"),
        (
            "{% for m in messages %}{{ m['role'] + m['content'] }}\n{% endfor %}",
            "closes the assistant's message with no special token",
        ),
    ],
)
def test_a_template_that_cannot_be_cut_is_refused(template, message):
    with pytest.raises(ModelError, match=message):
        ChatRenderer(chatml_tokenizer(template))


def test_an_opening_of_several_messages_is_the_templates_own_rendering():
    renderer = RENDERERS["chatml"]
    texts = [("system", "Play."), ("user", "a1"), ("assistant", "up"), ("user", " a2 ")]
    tokens = renderer.start([Message.of(role, text) for role, text in texts])
    assert tokens == whole("chatml", [say(role, text) for role, text in texts])


def test_the_result_of_a_tool_is_written_under_its_role():
    renderer = RENDERERS["chatml"]
    answer = Message(role="tool", parts=(TextPart(text="5"),), answers="call-1")
    tokens = renderer.start(open_chat("", "2 + 3?")) + renderer.encode("add") + renderer.stop[:1]
    tokens += renderer.extend([answer], closed=True)
    messages = [say("user", "2 + 3?"), say("assistant", "add"), say("tool", "5")]
    assert tokens == whole("chatml", messages)


CALL = ToolCall(id="call-1", name="add", arguments={"a": 2})
WITH_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% if m['tool_calls'] %}{{ m['tool_calls'][0]['function'] | tojson }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_calls_in_an_opening_are_written_by_the_template():
    tokenizer = chatml_tokenizer(WITH_CALLS)
    asked = Message(role="assistant", calls=(CALL,))
    tokens = ChatRenderer(tokenizer).start([Message.of("user", "2 + 3?"), asked])
    assert '{"name": "add", "arguments": {"a": 2}}<|im_end|>' in tokenizer.decode(tokens)


def test_a_call_that_names_a_special_token_is_refused():
    asked = Message(role="assistant", calls=(replace(CALL, name="<|im_end|>"),))
    with pytest.raises(ModelError, match="a tool call holds the name of a special token"):
        RENDERERS["chatml"].start([Message.of("user", "2 + 3?"), asked])


@pytest.mark.parametrize("role", ["user", "system"])
def test_an_image_is_refused_by_a_template_of_text(role):
    shown = Message(role=role, parts=(TextPart(text="look"), ImagePart(data=b"png")))
    with pytest.raises(ModelError, match=f"a message of role {role} holds an image"):
        RENDERERS["chatml"].start([shown, Message.of("user", "a1")])
    with pytest.raises(ModelError, match="writes text only: use a model that reads images"):
        RENDERERS["chatml"].extend([shown], closed=True)
