"""For all tests: signals as a shell in the foreground leaves them, since a runner in the background hands down SIGINT and SIGHUP ignored."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
