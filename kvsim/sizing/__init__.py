"""How many bytes a model's cache takes and a GPU leaves for it."""
