from chat_templates import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import shipped_texts
from transformers import AutoTokenizer

from rollart.envs.frozen_lake import FrozenLake
from rollart.inference.renderer import ChatRenderer
from rollart.models.tokenizer import SPECIAL_TOKENS, build_tokenizer
from rollart.types import Message, open_chat

SHIPPED = build_tokenizer(shipped_texts())


@settings(deadline=None)
@given(st.text())
def test_every_text_comes_back_unchanged(text):
    ids = SHIPPED.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert SHIPPED.decode(ids) == text or any(token in text for token in SPECIAL_TOKENS)


def test_directions_digits_and_squares_are_single_tokens():
    squares = [f"{column}{row}" for column in "abcd" for row in range(1, 5)][:-1]
    words = ["up", "down", "left", "right", *"0123456789", *squares, "higher", "lower", "calc"]
    assert [SHIPPED.tokenize(word) for word in words] == [[word] for word in words]


def test_the_vocabulary_is_about_as_large_as_asked_for():
    assert 400 <= len(SHIPPED) <= 512
    assert len(build_tokenizer(CORPUS, vocabulary=300)) == 300


def test_the_same_corpus_gives_the_same_tokenizer():
    again = build_tokenizer(shipped_texts())
    assert again.backend_tokenizer.to_str() == SHIPPED.backend_tokenizer.to_str()


def test_saved_and_loaded_it_is_the_same(tmp_path):
    SHIPPED.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "holes b2"}, {"role": "assistant", "content": "up"}]
    text = loaded.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>holes b2<|assistant|>up<|end|>"
    assert loaded(text)["input_ids"] == SHIPPED(text)["input_ids"]
    assert (loaded.eos_token, loaded.pad_token) == ("<|end|>", "<|pad|>")


def test_a_frozen_lake_spends_few_tokens():
    renderer = ChatRenderer(SHIPPED)
    env = FrozenLake(holes=3)
    opening = env.reset(0, {})[0]
    assert len(renderer.encode(opening)) <= 10
    assert len(renderer.start(open_chat(env.system_prompt, opening))) <= 25
    assert len(renderer.extend([Message.of("user", env.step(env.suggest())[0])], closed=True)) == 3
