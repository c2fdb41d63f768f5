"""A small byte-level tokenizer with a chat template that spends few tokens.

Every UTF-8 text can be encoded and comes back unchanged, because the 256 bytes are the alphabet.
Digits and marks are always tokens of their own (or with the space before them); words frequent in
the corpus, and names such as `b2`, become one token. Built from the same corpus it is the same
tokenizer, to the byte.

Chat: `<|system|>…<|user|>…<|assistant|>…<|end|>`. A message opens with its role's token; only
the assistant's is closed, since nobody else's end has to be sampled.
"""

from collections.abc import Sequence
from string import ascii_letters

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

PAD, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PIECES = r" ?[a-z][0-9](?![\p{L}\p{N}])| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s"


def build_tokenizer(
    corpus: Sequence[str], *, vocabulary: int = 512, context: int = 2048
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `corpus`, the texts it will mostly see."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = Steps(
        [
            Split(Regex(_PIECES), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=1,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*corpus, " ".join(ascii_letters)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
