"""Text to train on that needs no download: Python's own help topics, or a file of yours; characters as tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


def python_topics() -> list[str]:
    """The help topics that come with Python (`help("for")`), in English. They differ from release to release."""
    from pydoc_data.topics import topics  # late: half a megabyte of text

    return [topics[name] for name in sorted(topics)]


def paragraphs_of(path: str | Path) -> list[str]:
    """The paragraphs of a text file: what stands between empty lines, each with an empty line after it."""
    paragraphs = Path(path).read_text(encoding="utf-8").split("\n\n")
    return [f"{paragraph.strip(chr(10))}\n\n" for paragraph in paragraphs if paragraph.strip()]


def held_out(parts: list[str], every: int = 10) -> tuple[str, str]:
    """Training text and validation text: each `every`-th part, from the first on, is kept for validation, whole.

    A paragraph of a validation part that stands in a training part as well is left out of training: the help
    topics quote one another. Raises ValueError where there are too few parts to keep one.
    """
    if len(parts) < every:
        raise ValueError(
            f"this text has {len(parts)} parts, and one of {every} is kept for validation: "
            f"take a longer text, or a smaller `every`"
        )
    validation = "".join(parts[::every])
    training = "".join(part for position, part in enumerate(parts) if position % every)
    known = set(validation.split("\n\n"))
    return "\n\n".join(part for part in training.split("\n\n") if part not in known), validation


class Characters:
    """The characters of a text, numbered in their order: the vocabulary of a character model."""

    def __init__(self, text: str):
        self.alphabet = sorted(set(text))
        self._number = {character: number for number, character in enumerate(self.alphabet)}

    def __len__(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """Token numbers: (len(text),), int64. Raises ValueError for a character that is not in the alphabet."""
        unknown = sorted(set(text) - self._number.keys())
        if unknown:
            raise ValueError(
                f"not in the alphabet: {unknown}. Make the vocabulary from all the text that you mean to encode."
            )
        return torch.tensor([self._number[character] for character in text], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of a row of tokens (N,)."""
        return "".join(self.alphabet[number] for number in tokens.tolist())
