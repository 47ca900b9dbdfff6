"""`ett.warm_compile`: run a training step ahead of the training so that everything in it is compiled, and leave no other trace of it.

`face` is what a program calls, `found` the objects that its step can change, `kept` their values and how they are put back.
"""
