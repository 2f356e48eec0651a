"""Plot: curves as an SVG picture, with nothing but string formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

COLOURS = ("#1b6ca8", "#c0532b", "#4f7a28", "#7a4b94")
PANEL_WIDTH, PANEL_HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 48
_STEPS = (1, 2, 2.5, 5, 10)


class Panel(NamedTuple):
    """One pair of axes: curves by name, each a value for each x."""

    title: str
    x_label: str
    xs: Sequence[int]
    curves: Mapping[str, Sequence[float]]


def picture(panels: Sequence[Panel]) -> str:
    """The panels side by side, as the text of an SVG file."""
    width = PANEL_WIDTH * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{PANEL_HEIGHT}" '
        f'viewBox="0 0 {width} {PANEL_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{PANEL_HEIGHT}" fill="white"/>',
    ]
    for at, panel in enumerate(panels):
        lines += [f'<g transform="translate({at * PANEL_WIDTH} 0)">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    highest = max(max(values) for values in panel.curves.values())
    step = _step(highest)
    ticks = [step * n for n in range(int(highest / step) + 2)]
    x_first, x_last = panel.xs[0], panel.xs[-1]

    def x_of(value: float) -> float:
        return LEFT + (PANEL_WIDTH - LEFT - RIGHT) * (value - x_first) / (x_last - x_first)

    def y_of(value: float) -> float:
        return PANEL_HEIGHT - BOTTOM - (PANEL_HEIGHT - TOP - BOTTOM) * value / ticks[-1]

    lines = [f'<text x="{LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>']
    for tick in ticks:
        y = y_of(tick)
        lines += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{PANEL_WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>',
        ]
    for x in panel.xs:
        at = f'x="{x_of(x):.1f}" y="{PANEL_HEIGHT - BOTTOM + 18}"'
        lines.append(f'<text {at} text-anchor="middle">{x}</text>')
    middle = (LEFT + PANEL_WIDTH - RIGHT) / 2
    label = f'<text x="{middle}" y="{PANEL_HEIGHT - 10}" text-anchor="middle">{escape(panel.x_label)}</text>'
    lines.append(label)
    for number, (name, values) in enumerate(panel.curves.items()):
        points = [(x_of(x), y_of(value)) for x, value in zip(panel.xs, values, strict=True)]
        lines += _curve(name, COLOURS[number % len(COLOURS)], points, LEFT + 12 + 90 * number)
    return lines


def _curve(name: str, colour: str, points: list[tuple[float, float]], legend_x: int) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<rect x="{legend_x}" y="{TOP - 14}" width="14" height="4" fill="{colour}"/>',
        f'<text x="{legend_x + 20}" y="{TOP - 8}">{escape(name)}</text>',
    ]


def _step(highest: float) -> float:
    """The distance of the lines of a grid: about five of them, at round numbers."""
    scale = 1.0
    while scale * 10 <= highest / 5:
        scale *= 10
    while scale > highest / 5:
        scale /= 10
    return next(scale * step for step in _STEPS if scale * step >= highest / 5)
