"""Draws trade-off.svg, the picture in ethics-board.md: `python docs/images/trade_off.py`."""

from pathlib import Path

import numpy as np
from scipy.stats import norm

CURVES = {0.5: "#8fb8de", 1.0: "#4f8fcb", 2.0: "#1b62a5", 3.0: "#0a3a6b"}
SIZE, LEFT, TOP = 400.0, 78.0, 16.0
WIDTH, HEIGHT = 512.0, 478.0


def place(alarms: float, found: float) -> str:
    return f"{LEFT + SIZE * alarms:.1f},{TOP + SIZE * (1 - found):.1f}"


def curve(mu: float) -> str:
    """The most that mu allows to be found, at every rate of false alarms."""
    alarms = norm.cdf(np.linspace(-3.7 - mu, 3.7, 121))
    points = [place(a, norm.cdf(norm.ppf(a) + mu)) for a in alarms]
    return " ".join([place(0, 0), *points, place(1, 1)])


def draw() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" width="{WIDTH:.0f}" '
        f'height="{HEIGHT:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="14" fill="#1b1f24">',
        "<title>What mu allows</title>",
        "<desc>How often a row can be found at best, against false alarms, for several mu</desc>",
        f'<rect width="{WIDTH:.0f}" height="{HEIGHT:.0f}" fill="#ffffff"/>',
    ]
    for share in np.linspace(0, 1, 6):
        across, up = place(share, 0).split(",")[0], place(0, share).split(",")[1]
        parts += [
            f'<path d="M{across},{TOP:.1f}V{TOP + SIZE:.1f}M{LEFT:.1f},{up}H{LEFT + SIZE:.1f}" stroke="#e3e8ed"/>',
            f'<text x="{across}" y="{TOP + SIZE + 20:.1f}" text-anchor="middle">{100 * share:.0f} %</text>',
            f'<text x="{LEFT - 8:.1f}" y="{float(up) + 5:.1f}" text-anchor="end">{100 * share:.0f} %</text>',
        ]
    line = 'fill="none" stroke-width="2.5" stroke-linejoin="round"'
    dotted = 'fill="none" stroke-width="1.5" stroke-dasharray="2 5"'
    drawn = [("guessing", "#57606a", dotted, f"{place(0, 0)} {place(1, 1)}", 0.5)]
    drawn += [(f"mu = {mu:g}", colour, line, curve(mu), float(norm.cdf(mu / 2))) for mu, colour in CURVES.items()]
    x, y = LEFT + 0.53 * SIZE, TOP + 0.93 * SIZE
    parts.append(f'<rect x="{x - 10:.1f}" y="{y - 120:.1f}" width="186" height="130" fill="#ffffff"/>')
    for name, colour, style, points, right in drawn:
        parts += [
            f'<polyline points="{points}" stroke="{colour}" {style}/>',
            f'<polyline points="{x:.1f},{y - 5:.1f} {x + 26:.1f},{y - 5:.1f}" stroke="{colour}" {style}/>',
            f'<text x="{x + 36:.1f}" y="{y:.1f}">{name}</text>',
            f'<text x="{x + 166:.1f}" y="{y:.1f}" text-anchor="end">{100 * right:.0f} %</text>',
        ]
        y -= 24
        if right > 0.5:
            parts.append(f'<circle cx="{LEFT + SIZE * (1 - right):.1f}" cy="{TOP + SIZE * (1 - right):.1f}" r="4.5" '
                         f'fill="{colour}" stroke="#ffffff" stroke-width="1.5"/>')  # fmt: skip
    parts.append(f'<text x="{x + 166:.1f}" y="{y:.1f}" text-anchor="end" fill="#57606a">right at best</text>')
    middle = TOP + SIZE / 2
    parts += [
        f'<text x="{LEFT + SIZE / 2:.1f}" y="{HEIGHT - 16:.1f}" text-anchor="middle">False alarms: says “in” though '
        "the row is not</text>",
        f'<text transform="translate(20,{middle:.1f}) rotate(-90)" text-anchor="middle">Found: says “in”, and the row '
        "is</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "trade-off.svg").write_text(draw(), encoding="utf-8")
