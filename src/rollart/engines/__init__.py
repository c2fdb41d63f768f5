"""Inference engines, one package or module per adapter of the Engine port."""
