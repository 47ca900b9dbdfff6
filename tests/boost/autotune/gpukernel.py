"""A kernel under `@triton.autotune`, in a file of its own: triton reads a kernel's source, and names, from its file."""

import triton
import triton.language as tl


def make():
    """The kernel anew, with an empty cache."""
    return triton.autotune(configs=[triton.Config({"B": block}) for block in (64, 128, 256)], key=["n"])(fill)


@triton.jit
def fill(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, 1.0, mask=at < n)
