"""Many jobs, and jobs that ettrain did not run: foreign logs become the same journals that the recorder writes.

    importing    what every import does: a job's folder, whole or not at all
    goodputlog   reads the flat records of ml-goodput-measurement and of Orbax
    goodputruns  what they mean: attempts, steps, and what is known of their ends
    goodput      the same as a job's journals, and what they leave open, in words
"""
