"""For Lightning's `Trainer`: `from ettrain.lightning import Checkpoint`."""

from ettrain.boost.frameworks.lightning import Checkpoint

__all__ = ["Checkpoint"]
