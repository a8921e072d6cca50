"""The results as an SVG: a bar for each row, with its spread and target, and the curve of the pipelining engine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]

WIDTH = 980
MARGIN = 28
LABELS = 430
"""Where bars begin."""
BARS = 330
ROW = 24
INK, SOFT, PALE = "#1f2933", "#66727f", "#e4e9ee"
COLOURS = {True: "#2f7f79", False: "#c0492f", None: "#8a99a8"}
CURVE_HEIGHT = 300
LEGEND = (
    (True, "target reached"),
    (False, "target missed"),
    (None, "no target"),
)


def picture(content: Json) -> str:
    """The whole picture of what the suite wrote as JSON."""
    groups = [group for group in content["groups"] if group["rows"]]
    parts: list[str] = []
    y = 42
    parts.append(_text(MARGIN, y, "KVCS benchmarks", size=20, weight=600))
    parts.append(_text(MARGIN, y + 22, _subtitle(content), fill=SOFT))
    parts.extend(_legend(y + 46))
    y += 84
    for group in groups:
        parts.append(_text(MARGIN, y, group["title"], size=14, weight=600))
        y += 10
        parts.extend(_bars(group["rows"], y))
        y += ROW * len(group["rows"]) + 34
    times = pipelining_times(groups)
    if len(times) > 1:
        parts.extend(_curve(times, y))
        y += CURVE_HEIGHT + 90
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" font-family="Helvetica, Arial, sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _subtitle(content: Json) -> str:
    rounds = content["rounds"]
    kind = f"medians of {rounds} rounds" if rounds > 1 else "one round"
    if content["quick"]:
        kind = "quick run, proves nothing"
    return (
        f"{kind}; {content['cpus']} CPUs, {content['system']}, Python {content['python']}, "
        f"aioquic {content['aioquic']}"
    )


def _legend(y: int) -> Iterator[str]:
    x = MARGIN
    for met, label in LEGEND:
        yield _box(x, y - 10, 12, 12, COLOURS[met])
        yield _text(x + 18, y, label, fill=SOFT)
        x += 130
    yield _line(x, y - 12, x, y + 4, INK, 2)
    yield _text(x + 8, y, "target", fill=SOFT)
    yield _line(x + 66, y - 4, x + 96, y - 4, INK, 1)
    yield _text(x + 104, y, "least to most of the rounds", fill=SOFT)


def _bars(rows: list[Json], top: int) -> Iterator[str]:
    """Bars of one group share a scale."""
    most = max(max(*row["values"], row["target"] or 0.0) for row in rows) * 1.05
    scale = BARS / most if most > 0 else 0.0
    for index, row in enumerate(rows):
        y = top + index * ROW
        middle = y + ROW / 2
        yield _box(LABELS, y + 4, BARS, ROW - 8, PALE)
        yield _box(LABELS, y + 4, row["median"] * scale, ROW - 8, COLOURS[row["met"]])
        least, greatest = min(row["values"]), max(row["values"])
        if greatest > least:
            yield _line(LABELS + least * scale, middle, LABELS + greatest * scale, middle, INK, 1)
        if row["target"] is not None:
            x = LABELS + row["target"] * scale
            yield _line(x, y + 1, x, y + ROW - 1, INK, 2)
        yield _text(LABELS - 12, middle + 4, row["title"], anchor="end")
        yield _text(LABELS + BARS + 10, middle + 4, _value(row))


def _value(row: Json) -> str:
    text = f"{row['median']:.2f}{'' if row['unit'] == '×' else ' '}{row['unit']}"
    if row["target"] is not None:
        text += f" ({'≤' if row['at_most'] else '≥'} {row['target']:g})"
    return text


def pipelining_times(groups: list[Json]) -> list[tuple[float, float]]:
    """Compute time of a layer and total, both in times of the plain transfer; medians of the rounds."""
    found: dict[float, list[float]] = {}
    for group in groups:
        for numbers in (r["pipeline"] for r in group["rounds"] if "pipeline" in r):
            transfer = numbers["times"][0]
            for factor, total in zip(numbers["factors"][1:], numbers["times"][1:], strict=True):
                found.setdefault(factor, []).append(total / transfer)
    return [(factor, statistics.median(totals)) for factor, totals in sorted(found.items())]


def _curve(times: list[tuple[float, float]], top: int) -> Iterator[str]:
    """Logarithmic on both axes: one after the other, overlapped perfectly, and measured."""
    left, width, height = MARGIN + 60, 560, CURVE_HEIGHT
    low, high = min(f for f, _ in times), max(f for f, _ in times)
    ceiling = max(1 + high, *(total for _, total in times)) * 1.1

    def x(factor: float) -> float:
        return left + width * math.log(factor / low) / math.log(high / low)

    def y(total: float) -> float:
        return top + 30 + height * (1 - math.log(total / 0.9) / math.log(ceiling / 0.9))

    yield _text(MARGIN, top, "Use while it arrives, 40 Mbit/s", size=14, weight=600)
    for tick in (1, 2, 3, 4, 6):
        if tick < ceiling:
            yield _line(left, y(tick), left + width, y(tick), PALE, 1)
            yield _text(left - 10, y(tick) + 4, f"{tick}", anchor="end", fill=SOFT)
    for factor, _ in times:
        yield _line(x(factor), top + 30, x(factor), top + 30 + height, PALE, 1)
        yield _text(x(factor), top + 48 + height, f"{factor:g}", anchor="middle", fill=SOFT)
    label = "compute time of a layer ÷ its transfer time"
    yield _text(left + width / 2, top + 68 + height, label, anchor="middle", fill=SOFT)
    yield _text(left, top + 22, "total ÷ transfer time", fill=SOFT)
    steps = [low * (high / low) ** (step / 40) for step in range(41)]
    curves = (
        ("fetch it all, then compute", SOFT, [(f, 1 + f) for f in steps], "6 4"),
        ("perfect overlap", INK, [(f, max(1.0, f)) for f in steps], "2 3"),
        ("measured", COLOURS[True], times, ""),
    )
    for index, (name, colour, points, dash) in enumerate(curves):
        path = " ".join(f"{x(f):.1f},{y(total):.1f}" for f, total in points)
        yield (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash or "none"}"/>'
        )
        key = top + 50 + index * 24
        yield (
            f'<line x1="{left + width + 24}" y1="{key}" x2="{left + width + 64}" y2="{key}" '
            f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash or "none"}"/>'
        )
        yield _text(left + width + 74, key + 4, name)
    for factor, total in times:
        yield (
            f'<circle cx="{x(factor):.1f}" cy="{y(total):.1f}" r="4" fill="{COLOURS[True]}" '
            'stroke="#ffffff"/>'
        )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    weight: int = 400,
    anchor: str = "start",
    fill: str = INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
    )


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}"/>'
    )
