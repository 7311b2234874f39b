"""`show_attention`: who looks at whom. One square per head; a row is a query, a column is a key.

The darker a box, the more weight. What a query may not see is left out, so a leak would be seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from course_lib.display.theme import INK, LINE, TENSOR_COLORS, Face, escape, style

SHOWN = 24  # queries and keys that are drawn
LETTERS = 8  # characters of a token that are written
BOX = 18  # units of a box
LEFT, TOP = 74, 22  # room for the tokens

_SHEET = f"""
.cl-att {{ color: {INK}; font-size: 13px; margin: 6px 0; display: flex; flex-wrap: wrap; gap: 4px 22px; }}
.cl-att figure {{ margin: 0 !important; }}
.cl-att figcaption {{ font-weight: 600; font-size: 13px; }}
.cl-att svg {{ display: block; max-width: 100%; height: auto; }}
.cl-att text {{ fill: currentColor; font-size: 11px; font-family: inherit; }}
.cl-att rect.frame {{ fill: none; stroke: {LINE}; }}
.cl-att rect.future {{ stroke: currentColor; stroke-dasharray: 2 2; }}
.cl-att .note {{ flex-basis: 100%; font-size: 12px; opacity: .78; }}
"""


def show_attention(weights: Tensor, tokens: Sequence[str], names: Sequence[str] = ()) -> Face:
    """Draw the attention weights of one sequence: `weights` is (H, T, T), a row of it adds up to 1.

    `tokens` are the T tokens as text; `names` are the captions of the heads. The first 24 tokens are drawn.
    Raises ValueError where the sizes do not fit.
    """
    weights = weights.detach().double().cpu()
    if weights.dim() != 3 or weights.shape[1:] != (len(tokens), len(tokens)):
        raise ValueError(
            f"show_attention() draws weights (heads, tokens, tokens); got {tuple(weights.shape)} "
            f"for {len(tokens)} tokens. Pick one sequence, for example weights[0]"
        )
    captions = list(names) or [f"head {head}" for head in range(len(weights))]
    labels = [_written(token) for token in tokens[:SHOWN]]
    maps = [head[:SHOWN, :SHOWN].tolist() for head in weights]
    figures = "".join(_figure(c, m, labels) for c, m in zip(captions, maps, strict=True))
    note = '<div class="note">Each row is one token that looks; its boxes add up to 1.</div>'
    text = "\n".join(_text(c, m, labels) for c, m in zip(captions, maps, strict=True))
    return Face(f'{style(_SHEET)}<div class="cl-att">{figures}{note}</div>', text)


def _written(token: str) -> str:
    """A token so that it can be seen: a blank is a low bar, a line break an arrow."""
    return token.replace(" ", "\u2423").replace("\n", "\u21b5")[:LETTERS] or "\u2205"


def _figure(caption: str, rows: list[list[float]], labels: list[str]) -> str:
    side = BOX * len(labels)
    boxes = "".join(_box(i, j, weight, labels) for i, row in enumerate(rows) for j, weight in enumerate(row))
    down = "".join(
        f'<text x="{LEFT - 6}" y="{TOP + BOX * i + 13}" text-anchor="end">{escape(label)}</text>'
        for i, label in enumerate(labels)
    )
    across = "".join(
        f'<text x="{LEFT + BOX * j + BOX / 2:g}" y="{TOP - 6}" text-anchor="middle">{escape(label[:2])}</text>'
        for j, label in enumerate(labels)
    )
    frame = f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{side}" height="{side}"/>'
    size = f'width="{LEFT + side + 4}" viewBox="0 0 {LEFT + side + 4} {TOP + side + 4}"'
    spoken = escape(_text(caption, rows, labels))
    svg = f'<svg {size} role="img" aria-label="{spoken}">{frame}{boxes}{down}{across}</svg>'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _box(i: int, j: int, weight: float, labels: list[str]) -> str:
    """One weight. A weight on a later token is a leak: its box has a dashed border."""
    if weight < 0.005:
        return ""
    leak = ' class="future"' if j > i else ""
    place = f'x="{LEFT + BOX * j}" y="{TOP + BOX * i}" width="{BOX}" height="{BOX}"'
    said = escape(f"{labels[i]} looks at {labels[j]}: {weight:.2f}")
    fill = f'fill="{TENSOR_COLORS[0]}" fill-opacity="{weight:.2f}"'
    return f"<rect{leak} {place} {fill}><title>{said}</title></rect>"


def _text(caption: str, rows: list[list[float]], labels: list[str]) -> str:
    """The strongest look of each token."""
    strongest = [max(range(len(row)), key=row.__getitem__) for row in rows]
    looks = (f"{labels[i]}\u2192{labels[j]} {rows[i][j]:.2f}" for i, j in enumerate(strongest))
    return f"{caption}: {', '.join(looks)}"
