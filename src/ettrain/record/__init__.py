"""Inside the training process: what is recorded, and how the recorder gets in.

    inject/    two files that every Python process below `ett run` executes first: sys, os and time only
    stages     the process's life, its open stages, the beat page; standard library only, as is all but hooks/
    recorder   steps, waits and stalls
    output     where records go
    rank       which rank this is
    stepcount  when an optimizer call is a new step
    exits      how the process ends
    startup    what ran during set-up
    api        `ett.stage`, `ett.step`, `ett.steps`
    hooks/     where torch is touched, one file per subject

Nothing here may raise into the program or change what it computes: see `guard`.
"""
