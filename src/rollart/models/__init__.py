"""Tiny models, tokenizer, chat rendering and warm starts for a machine with no model hub."""
