"""The accounting core: histories in, a ledger out. Pure: no clock, file, environment or logging; times are integer ns.

    history   what happened, as typed data (job -> attempts -> ranks)
    assemble  journal records -> history
    frames    per attempt: when it was up, when productive work stopped, how it ended
    timeline  one rank's time as tiles that cover it exactly
    rollback  which training survived
    wallview  many ranks' tiles -> the job's state at each instant
    ledger    the numbers, and the laws they must obey
"""
