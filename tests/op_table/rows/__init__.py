"""Rows of the op table, one file a family; each file's `ROWS` is found by name, there is no list to edit."""
