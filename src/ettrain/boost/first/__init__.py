"""`ett.first_batch`: the real pipeline starts in the background, and a batch to compile with is there at once.

`face` is what a program uses, `schema` the description of a batch, `fill` a batch made from one, `learned` the file in between.
"""
