"""One policy on a virtual clock."""
