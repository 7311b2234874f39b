"""What every picture shares: colors, style sheets, prose and the `Face` that a notebook shows.

No theme is detected. Text takes the page's own color, lines and tints are translucent, and each solid color
is of a middle luminance: at least 3:1 against a white and against a dark page, and 4.5:1 under white text.
"""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import dataclass

TENSOR_COLORS = ("#0072b2", "#bd4b00", "#007d5c", "#a64a8b", "#806600", "#5d63c9")
STATE_COLORS = {
    "passed": "#1a7f37",
    "failed": "#c4372d",
    "error": "#ad5700",
    "not attempted": "#6b7280",
    "grader fault": "#7d55c7",
    "tried": "#ad5700",
    "surprise": "#ad5700",
    "help": "#0072b2",
}
STATE_SYMBOLS = {
    "passed": "✓",
    "failed": "✗",
    "error": "!",
    "not attempted": "○",
    "grader fault": "?",
    "tried": "◐",
    "surprise": "≠",
    "help": "→",
}
LINE = "rgba(128, 128, 128, .5)"
TINT = "rgba(128, 128, 128, .12)"
MONO = "var(--jp-code-font-family, ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace)"
INK = "var(--jp-content-font-color1, var(--vscode-foreground, inherit))"

_TOKEN = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```[ \t]*$\n?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Face:
    """Something to look at: rich in a notebook, plain text everywhere else."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def escape(value: object) -> str:
    """`value` as text that a page shows literally."""
    return html.escape(str(value), quote=True)


def style(sheet: str) -> str:
    """A style element holding `sheet`, without its line breaks."""
    return f"<style>{' '.join(sheet.split())}</style>"


def inline(text: str) -> str:
    """One piece of prose as HTML: `code` and **strong** are marked up, everything else is literal."""
    pieces, end = [], 0
    for token in _TOKEN.finditer(text):
        pieces.append(escape(text[end : token.start()]))
        code, strong = token.groups()
        pieces.append(f"<code>{escape(code)}</code>" if code else f"<strong>{escape(strong)}</strong>")
        end = token.end()
    return "".join(pieces) + escape(text[end:])


def prose(text: str) -> str:
    """Paragraphs and fenced code blocks as HTML; the markup inside a paragraph is that of `inline`."""
    pieces = _FENCE.split(text)
    return "".join(
        _paragraphs(piece) if i % 2 == 0 else preformatted(piece) for i, piece in enumerate(pieces)
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{inline(p.strip())}</p>" for p in re.split(r"\n\s*\n", text) if p.strip())


def preformatted(text: str) -> str:
    """`text` in a block of code, literally."""
    return f"<pre><code>{escape(text.rstrip())}</code></pre>"


def wrap(text: str, width: int, indent: str = "") -> str:
    """`text` as lines of at most `width` characters; its own line breaks stay, fenced code stays as it is."""
    pieces = _FENCE.split(text)
    wrapped = [
        _wrapped_lines(p, width, indent) if i % 2 == 0 else _indented(p, indent) for i, p in enumerate(pieces)
    ]
    return "\n".join(piece for piece in wrapped if piece.strip())


def _wrapped_lines(text: str, width: int, indent: str) -> str:
    plain = re.sub(r"\*\*([^*\n]+)\*\*", r"\1", text)
    lines = (
        textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
        for line in plain.splitlines()
    )
    return "\n".join(lines).strip("\n")


def _indented(code: str, indent: str) -> str:
    return textwrap.indent(code.rstrip(), indent + "    ")
