"""Compiled functions against the same functions run as they are: to the bit, and to the word of an error."""
