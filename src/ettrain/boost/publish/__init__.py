"""Publishing off the devices: a request written at the end of training (`face`), and a CPU process that obeys it (`work`).

They meet in the target's folder alone: `request`, `target` and `progress` name what is in it.
"""
