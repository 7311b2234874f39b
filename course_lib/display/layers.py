"""Where the boxes of a layered graph go: every edge points down, and few edges cross.

The order is the usual one (Sugiyama): the longest path from the top gives each box its layer; an edge that skips
layers gets a waypoint in each; every layer is ordered by the barycenter of its neighbors; then boxes move
sideways towards their neighbors as far as the gaps allow. Nothing is random: the same graph is drawn alike.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

GAP_ACROSS = 22.0
GAP_DOWN = 44.0
WAYPOINT_WIDTH = 12.0
ORDERING_SWEEPS = 12
PLACING_SWEEPS = 16

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Boxes from the top layer down, the top left corner of each, and the points between the ends of each edge."""

    rows: list[list[int]]
    corners: list[Point]
    waypoints: list[list[Point]]
    width: float
    height: float


def layout(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of the given sizes (width, height). `edges` (from, to) must not make a cycle."""
    levels = _levels(len(sizes), edges)
    widths = [width for width, _ in sizes]
    chains = [_chain(edge, levels, widths) for edge in edges]
    links = [link for chain in chains for link in itertools.pairwise(chain)]
    rows = _ordered(_rows(levels), links)
    centers = _centers(rows, links, widths)
    tops = _tops(rows, sizes)
    corners = [(centers[i] - width / 2, tops[levels[i]]) for i, (width, _) in enumerate(sizes)]
    waypoints = [_waypoints(chain, centers, levels, tops) for chain in chains]
    right = max(center + widths[i] / 2 for i, center in enumerate(centers))
    boxes = [[i for i in row if i < len(sizes)] for row in rows]
    return Layout(boxes, corners, waypoints, right, tops[-1] - GAP_DOWN)


def _levels(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The length of the longest path that leads to each box from above."""
    below, waiting = defaultdict(list), [0] * count
    for source, target in edges:
        below[source].append(target)
        waiting[target] += 1
    levels, ready = [0] * count, [i for i in range(count) if not waiting[i]]
    for source in ready:  # grows as boxes become ready
        for target in below[source]:
            levels[target] = max(levels[target], levels[source] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return levels


def _chain(edge: tuple[int, int], levels: list[int], widths: list[float]) -> list[int]:
    """An edge as a path of one layer at a time. Waypoints are added to `levels` and `widths` like boxes."""
    source, target = edge
    chain = [source]
    for level in range(levels[source] + 1, levels[target]):
        chain.append(len(levels))
        levels.append(level)
        widths.append(WAYPOINT_WIDTH)
    return [*chain, target]


def _rows(levels: list[int]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for i, level in enumerate(levels):
        rows[level].append(i)
    return rows


# ---- the order in each layer ---------------------------------------------------------------------------


def _ordered(rows: list[list[int]], links: list[tuple[int, int]]) -> list[list[int]]:
    """The order with the fewest crossings that sweeping down and up finds."""
    above, below = _neighbors(links)
    ports = _ports(below)
    best, fewest = rows, _crossings(rows, below)
    for sweep in range(ORDERING_SWEEPS):
        rows = _swept(rows, above, ports) if sweep % 2 == 0 else _swept(rows[::-1], below, {})[::-1]
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _neighbors(links: list[tuple[int, int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    above, below = defaultdict(list), defaultdict(list)
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    return above, below


def _ports(below: dict[int, list[int]]) -> dict[tuple[int, int], float]:
    """How far to the right in its box each edge starts, from 0 to 1: the edges of a box keep their order."""
    return {
        (source, target): (targets.index(target) + 1) / (len(targets) + 1)
        for source, targets in below.items()
        for target in targets
    }


def _swept(
    rows: list[list[int]], neighbors: dict[int, list[int]], ports: dict[tuple[int, int], float]
) -> list[list[int]]:
    """Each layer sorted by where its neighbors in the layer before stand."""
    done = [rows[0]]
    for row in rows[1:]:
        at = {i: position for position, i in enumerate(done[-1])}
        place = {i: k for k, i in enumerate(row)}  # a box without neighbors stays where it is
        for i in filter(neighbors.__getitem__, row):
            place[i] = fmean(at[n] + ports.get((n, i), 0.0) for n in neighbors[i])
        done.append(sorted(row, key=place.__getitem__))
    return done


def _crossings(rows: list[list[int]], below: dict[int, list[int]]) -> int:
    return sum(_crossings_between(upper, lower, below) for upper, lower in itertools.pairwise(rows))


def _crossings_between(upper: list[int], lower: list[int], below: dict[int, list[int]]) -> int:
    """Pairs of edges that swap sides; an edge to an earlier box after one to a later box."""
    at = {i: position for position, i in enumerate(lower)}
    ends = [at[target] for source in upper for target in below[source]]
    return sum(first > second for first, second in itertools.combinations(ends, 2))


# ---- coordinates ---------------------------------------------------------------------------------------


def _centers(rows: list[list[int]], links: list[tuple[int, int]], widths: list[float]) -> list[float]:
    """Where each box stands across, the leftmost edge of all at 0."""
    centers = [0.0] * len(widths)
    for row in rows:
        for i, offset in zip(row, _offsets(row, widths)):
            centers[i] = offset
    above, below = _neighbors(links)
    for sweep in range(PLACING_SWEEPS):
        neighbors, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in order:
            _move(row, neighbors, centers, widths)
    left = min(center - width / 2 for center, width in zip(centers, widths))
    return [center - left for center in centers]


def _offsets(row: list[int], widths: list[float]) -> list[float]:
    """The centers of the row's boxes when they stand as close as they may."""
    steps = [(widths[a] + widths[b]) / 2 + GAP_ACROSS for a, b in itertools.pairwise(row)]
    return list(itertools.accumulate(steps, initial=0.0))


def _move(row: list[int], neighbors: dict[int, list[int]], centers: list[float], widths: list[float]) -> None:
    """Move the row's boxes as near to the mean of their neighbors as the gaps allow, in least squares."""
    offsets = _offsets(row, widths)
    wishes = [fmean(centers[n] for n in neighbors[i]) if neighbors[i] else centers[i] for i in row]
    free = _isotonic([wish - offset for wish, offset in zip(wishes, offsets)])
    for i, value, offset in zip(row, free, offsets):
        centers[i] = value + offset


def _isotonic(values: list[float]) -> list[float]:
    """The closest sequence that never falls: neighbors that are out of order share their mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return [mean for mean, count in pools for _ in range(count)]


def _tops(rows: list[list[int]], sizes: Sequence[Point]) -> list[float]:
    """The top of each layer, and of the one that would follow."""
    heights = [max((sizes[i][1] for i in row if i < len(sizes)), default=0.0) + GAP_DOWN for row in rows]
    return list(itertools.accumulate(heights, initial=0.0))


def _waypoints(chain: list[int], centers: list[float], levels: list[int], tops: list[float]) -> list[Point]:
    """Where an edge enters and leaves each layer that it passes."""
    return [(centers[i], y) for i in chain[1:-1] for y in (tops[levels[i]], tops[levels[i] + 1] - GAP_DOWN)]
