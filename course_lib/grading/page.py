"""The frame of the two pages that grading writes: one file, no script, nothing from elsewhere, light and dark."""

from __future__ import annotations

from pathlib import Path

from course_lib.display.theme import LINE, MONO, STATE_COLORS, STATE_SYMBOLS, TINT, escape, style
from course_lib.grading.files import plain, replace_file
from course_lib.grading.gradebook import COULD_NOT_BE_READ

SYMBOLS = {**STATE_SYMBOLS, COULD_NOT_BE_READ: "⚠"}
COLORS = {**STATE_COLORS, COULD_NOT_BE_READ: STATE_COLORS["error"]}

# The browser's own colors follow the theme of the system; solid colors are those of the course's pictures.
SHEET = f"""
:root {{ color-scheme: light dark; }}
body {{ background: Canvas; color: CanvasText; font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif;
  margin: 0 auto; padding: 20px 24px 60px; }}
h1 {{ font-size: 24px; line-height: 1.25; margin: 0 0 10px; overflow-wrap: anywhere; }}
h2 {{ font-size: 18px; margin: 34px 0 8px; }}
h3 {{ font-size: 15px; margin: 20px 0 6px; }}
p {{ max-width: 70ch; overflow-wrap: anywhere; }}
code {{ font-family: {MONO}; font-size: 90%; }}
a {{ color: LinkText; }}
:focus-visible {{ outline: 2px solid LinkText; outline-offset: 1px; }}
.quiet {{ opacity: .78; font-size: 13px; }}
.badge {{ color: #fff; font-size: 12.5px; font-weight: 600; padding: 1px 9px; border-radius: 10px;
  white-space: nowrap; }}
.scroll {{ overflow: auto; max-width: 100%; }}
.note {{ background: {TINT}; border-left: 4px solid {LINE}; border-radius: 3px; padding: 6px 12px;
  margin: 10px 0; max-width: 86ch; overflow-wrap: anywhere; }}
"""


def write_page(path: Path, title: str, sheet: str, body: str) -> Path:
    """Put a page at `path` in one step. `title` is plain text, `body` is HTML."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{style(SHEET + sheet)}</head>\n"
    )
    return replace_file(path, plain(f"{head}<body>\n{body}\n</body></html>\n"))


def badge(verdict: str) -> str:
    """A verdict by symbol, word and color."""
    return f'<span class="badge" style="background: {COLORS[verdict]}">{SYMBOLS[verdict]} {escape(verdict)}</span>'


def name(text: str) -> str:
    """A name from outside, in a direction of its own, so that it can't turn around what stands beside it."""
    return f"<bdi>{escape(text) if text.strip() else '(no name)'}</bdi>"


def scrolling(table: str, label: str) -> str:
    """A table that may be wider than the page, to be scrolled by mouse and by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
