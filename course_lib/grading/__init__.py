"""Grading submitted notebooks: who handed in what, judged in isolation, written where an instructor can use it."""
