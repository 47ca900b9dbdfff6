"""The parts that give time back, each usable alone: start-up, first batch, compile cache, communication, tuning.

They run inside the training process, on torch, and may mark their own spans through `ettrain.record`. They meet the other wings
in files and in environment names only.
"""
