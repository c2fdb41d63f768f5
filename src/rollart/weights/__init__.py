"""Weight stores, adapters of the WeightStore port; see docs/weights.md.

Names are Hugging Face parameter names. numpy has no bfloat16, so a bfloat16 tensor travels as the
uint16 array of its bits: in a weight store uint16 always means bfloat16, and turning it into a
tensor of that type (`torch.from_numpy(array).view(torch.bfloat16)`) is up to the caller.
"""
