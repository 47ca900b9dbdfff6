"""Compiles, trains on, and kills itself once an archive is there: nothing is left to an orderly end."""

import os
import pathlib
import signal
import sys
import time

import torch

import ettrain as ett
from ettrain.boost.compilecache import cache

cache.SETTLE_S = 0.2
ett.CompileCache(sys.argv[1], program="killed").attach()
function = torch.compile(lambda x: (x.sin() * 2).sum())
x = torch.ones(4)
for _ in range(600):
    function(x)
    time.sleep(0.05)
    if list(pathlib.Path(sys.argv[1]).rglob("*.ettc")):
        os.kill(os.getpid(), signal.SIGKILL)
