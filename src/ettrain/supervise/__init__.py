"""Around the training process: attempts, exits, restarts.

    run         one launcher per attempt, restarted on failure
    processes   who descends from us, when a process ended, and ending them all
    logs_specs  the same recording inside a plain `torchrun --logs-specs ettrain`
"""
