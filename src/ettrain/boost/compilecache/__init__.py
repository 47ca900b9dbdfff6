"""The shared archive of compile artifacts: what makes one valid (`key`), its bytes (`archive`), where it lies (`store`), what torch
has to do with it (`artifacts`), and when all that happens in a training process (`cache`).
"""
