"""Fast paths over many steps; tests hold them equal to the plain path."""
