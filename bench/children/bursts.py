"""The measured side: a process that times bursts of calls when asked, so that two processes can take turns.

A request is a JSON line {"name", "calls", "rest_s"}; the answer a JSON list of nanoseconds, one per call. The name `timer` times
nothing, which is what the clock itself costs. With a `rest_s`, the process sleeps before each call and copies 8 MB, so that the call
finds the caches as cold as in a program that trains.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

COLD_BYTES: Final = 8 << 20


def serve(calls: dict[str, Callable[[int], Any]], *, after: Callable[[], Any] = lambda: None) -> None:
    """Answer requests until there are none.

    Args:
        calls: name -> what to time; its argument counts up from 0.
        after: called after each burst, not timed.
    """
    numbers = dict.fromkeys(calls, 0)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        name, count, rest_s = request["name"], request["calls"], request["rest_s"]
        if name == "timer":
            samples = _burst(None, 0, count, rest_s)
        else:
            samples = _burst(calls[name], numbers[name], count, rest_s)
            numbers[name] += count
        after()
        print(json.dumps(samples), flush=True)


def _burst(call: Callable[[int], Any] | None, number: int, count: int, rest_s: float) -> list[int]:
    clock = time.perf_counter_ns
    memory = bytearray(COLD_BYTES) if rest_s else bytearray()
    samples: list[int] = []
    for n in range(number, number + count):
        if rest_s:
            time.sleep(rest_s)
            bytes(memory)
        if call is None:
            begin = clock()
            end = clock()
        else:
            begin = clock()
            call(n)
            end = clock()
        samples.append(end - begin)
    return samples
