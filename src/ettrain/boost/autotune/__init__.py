"""Pinning the winners of autotuning: what an earlier run searched for is not searched for again.

`pin(FILE)` in the program, or `ett run --autotune FILE` around it. Measuring is the recorder's (`record.hooks.tuning`), the file's
format is `ettrain.tuned`, the ranking is `ett autotune`.
"""

from __future__ import annotations

from ettrain.boost.autotune.pins import pin

__all__ = ["pin"]
