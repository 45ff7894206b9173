"""KV cache bookkeeping: block pool, scheduler, contiguous policies and the ledger of slots.

The paged engine runs on these classes unchanged, so the simulator counts what the engine does,
block for block. Imports no torch, console or translation.
"""
