"""Around the training process: attempts, exits, restarts.

run         one launcher per attempt, restarted on failure
watch       the ranks' processes: met by their journals, followed to their end
processes   who descends from us, how a process ended, and ending them all
recording   the supervisor's journal, its sign of life, and its claim on the job
logs_specs  the same recording inside a plain `torchrun --logs-specs ettrain`
"""
