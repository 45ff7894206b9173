"""An experiment on the console, in the page and as a table; each reads its result alone."""
