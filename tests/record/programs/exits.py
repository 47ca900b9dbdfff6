"""Ends of a process, one per word."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time

import ettrain as ett


def steps(n=3):
    for number in range(n):
        ett.step(number)


def failing_child():
    steps(2)
    raise LookupError("in a child")


def leaving_child(code):
    steps(2)
    sys.exit(code)


def main(mode):
    if mode == "atexit_slow":
        atexit.register(lambda: time.sleep(1))
    if mode == "interrupt_early":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    steps()
    if mode == "end":
        return
    if mode == "exception":
        raise ValueError("bad loss")
    if mode == "exception_in_stage":
        with ett.stage("publish"):
            raise ValueError("bad loss")
    if mode == "thread":
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    if mode == "hook_replaced":
        sys.excepthook = lambda *a: sys.stderr.write("custom hook\n")
        raise KeyError("lost?")
    if mode == "hook_chained":
        before = sys.excepthook

        def chained(*a):
            sys.stderr.write("custom hook\n")
            before(*a)

        sys.excepthook = chained
        raise KeyError("once")
    if mode == "atexit_hangs":
        atexit.register(lambda: time.sleep(3600))
        raise ValueError("then hang")
    if mode == "sys_exit":
        sys.exit(3)
    if mode == "sys_exit_text":
        sys.exit("fatal: no data")
    if mode == "os_exit":
        os._exit(4)
    if mode == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    if mode == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    if mode == "segv":
        import ctypes

        ctypes.string_at(0)
    if mode == "abort":
        os.abort()
    if mode == "own_handler":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    if mode == "saves_at_exit":
        def last():
            with ett.stage("publish"):
                time.sleep(0.02)

        atexit.register(last)
    if mode.startswith("child_"):
        _, kind, method = mode.split("_")
        target, arguments = {"raises": (failing_child, ()), "leaves": (leaving_child, (5,)), "ends": (leaving_child, (0,))}[kind]
        child = multiprocessing.get_context(method).Process(target=target, args=arguments)
        child.start()
        child.join()
        sys.exit(child.exitcode)


if __name__ == "__main__":
    main(sys.argv[1])
