"""One file for each way of handing out memory, behind one protocol (:mod:`.base`)."""
