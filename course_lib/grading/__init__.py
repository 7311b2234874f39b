"""Judging submitted notebooks in isolation, and the gradebook that comes of it."""
