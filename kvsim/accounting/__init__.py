"""Where every slot of a pool stands."""
