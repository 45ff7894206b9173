"""KV-cache bookkeeping: block pool, scheduler, contiguous policies and the ledger of slots.

Nothing here imports torch, a console or a translation: the paged engine runs on these classes
as they are, so what a simulation counts is what the engine does, block for block.
"""
