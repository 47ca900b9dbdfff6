"""`ett.Startup`: the stages of a start as functions, run with as much overlap as their dependencies allow.

`face` is what a program uses, `graph` the plan, `lanes` what runs it, `child` and `helper` a stage in another process, `threads` what
a thread takes over from the main one, `watch` draws from the global random generators, `order` the agreement between ranks, `trace` the record.
"""
