"""Reporters, one a file, each a reader of the record: nothing here measures or runs a model."""
