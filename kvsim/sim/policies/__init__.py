"""Memory policies, one module each, behind the protocol of :mod:`.base`."""
