"""A Triton backend named `cpu` that compiles nothing: it stands for Triton's interpreter.

vLLM's CPU build uses Triton only when a backend of this name exists. With `TRITON_INTERPRET=1`
every kernel is interpreted on CPU tensors, so nothing here is ever asked to compile.
"""
