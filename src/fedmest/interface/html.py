"""The one page shell, and what pages are made of: text, tables, bars, figures, a forest plot.

No scripts; drawings are boxes that CSS lays out.
"""

import html as standard_html
import math
from collections.abc import Sequence

import numpy as np

from fedmest.core.text import printable
from fedmest.core.typing import FloatArray

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a; --line: #d0d7de; --track: #eef1f4;
  --deep: #0b5cad; --pale: #9cc3ea; --good: #1a7f37; --bad: #b42318; --open: #7a5c00; --plate: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #14181d; --soft: #a5b1bd; --line: #333b44;
  --track: #222931; --deep: #6cb0f5; --pale: #2f5c8a; --good: #4cc26b;
  --bad: #ff8a80; --open: #e3b341; --plate: #f6f8fa; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 960px;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
p, li { max-width: 46rem; } .small { color: var(--soft); font-size: .88rem; } .good { color: var(--good); }
.bad { color: var(--bad); } .open { color: var(--open); } .good, .bad, .open { font-weight: 650; }
.statement { border-left: 4px solid var(--deep); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  font-weight: 400; } thead th { color: var(--soft); font-size: .88rem; } .n { text-align: right; white-space: nowrap; }
.plot { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr max-content; column-gap: .75rem;
  row-gap: .3rem; align-items: center; margin: .75rem 0; font-variant-numeric: tabular-nums; }
.plot > span { font-size: .9rem; } .track { position: relative; height: 1.1rem; background: var(--track);
  border-radius: 3px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.track i { position: absolute; top: 0; bottom: 0; border-radius: 2px; } .track .pale { background: var(--pale); }
.track .deep { background: var(--deep); } .track .thin { top: 30%; bottom: 30%; }
.track b { position: absolute; top: -1px; bottom: -1px; width: 3px; margin-left: -1.5px; background: var(--ink); }
.track u { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); }
.ticks { position: relative; height: 1.2rem; font-size: .8rem; color: var(--soft); }
.ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.key { display: inline-block; width: 1.1em; height: .8em; border-radius: 2px; margin: 0 .35em 0 .9em;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.key.pale { background: var(--pale); } .key.deep { background: var(--deep); }
figure { margin: 1rem 0 2rem; } figure img { width: 100%; background: var(--plate); border-radius: 4px; }
figcaption { max-width: 46rem; } td.long { min-width: 17rem; font-size: .82rem; } td .small { display: block; }
tbody a { white-space: nowrap; }
code, pre { font-size: .88rem; } pre { background: var(--track); padding: .7rem .9rem; overflow-x: auto; }
.curve { width: 100%; max-width: 21rem; } .curve text { fill: var(--soft); font-size: 11px; }
@media (max-width: 520px) { .plot { grid-template-columns: 1fr; row-gap: .1rem; } .plot > span { margin-top: .3rem; } }
@media print { body { max-width: none; } figure, tr, .plot > * { break-inside: avoid; } }
"""


class Html(str):
    """Text that is HTML already and is not escaped again."""


def escape(words: str, quote: bool = True) -> str:
    """Text as HTML, its control characters written out."""
    return standard_html.escape(printable(words, keep="\n\t"), quote)


def html(words: str) -> str:
    """Text as HTML; what is HTML stays as it is."""
    return words if isinstance(words, Html) else escape(words)


def document(title: str, *body: str) -> str:
    """A whole page."""
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def section(title: str, *body: str) -> str:
    """A section with its heading."""
    return "\n".join([f"<section><h2>{escape(title)}</h2>", *(part for part in body if part), "</section>"])


def text(words: str, kind: str = "") -> str:
    """A paragraph."""
    return f"<p{f' class={kind}' if kind else ''}>{html(words)}</p>"


def badge(words: str, kind: str) -> Html:
    """A verdict: good, bad or open."""
    return Html(f"<span class={kind}>{escape(words)}</span>")


def folded(title: str, body: str) -> str:
    """A part that a click unfolds."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def figure(drawing: str, caption: str, id: str = "") -> str:
    """An <img> or <svg> with its caption."""
    return f"<figure{f' id={id}' if id else ''}>{drawing}<figcaption class=small>{html(caption)}</figcaption></figure>"


def bullets(items: Sequence[str]) -> str:
    """A bulleted list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str] = (),
    label: str = "",
    long: Sequence[str] = (),
) -> str:
    """A table; the first cell of a row is its head.

    Columns whose heads are in `numbers` are right-aligned, those in `long` hold sentences.
    """
    kinds = [" class=n" if head in numbers else " class=long" if head in long else "" for head in heads]
    top = "".join(f"<th scope=col{kind}>{escape(head)}</th>" for head, kind in zip(heads, kinds, strict=True))
    lines = []
    for row in rows:
        cells = [f"<td{kind}>{html(cell)}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True)]
        lines.append(f"<tr><th scope=row{kinds[0]}>{html(row[0])}</th>{''.join(cells)}</tr>")
    named = escape(label or f"table by {heads[0]}", quote=True)
    return (
        f"<div class=wide tabindex=0 role=region aria-label='{named}'><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def bars(items: Sequence[tuple[str, float, str]], label: str) -> str:
    """Horizontal bars: (name, length, label)."""
    most = max((length for _, length, _ in items), default=0.0) or 1.0
    rows = [
        f"<span>{escape(name)}</span><span class=track><i class=deep style='left:0;width:{100 * length / most:.2f}%'>"
        f"</i></span><span class=n>{escape(value)}</span>"
        for name, length, value in items
    ]
    return f"<div class=plot role=group aria-label='{escape(label, quote=True)}'>{''.join(rows)}</div>"


def forest(names: Sequence[str], at: FloatArray, inner: FloatArray, outer: FloatArray, label: str) -> str:
    """Estimates with intervals of half-widths `outer` and, inside them, `inner`, on one axis that includes zero."""
    low, high = min(float((at - outer).min()), 0.0), max(float((at + outer).max()), 0.0)
    margin = 0.03 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return 100 * (value - low) / (high - low)

    def box(kind: str, centre: float, half: float) -> str:
        return f"<i class='{kind}' style='left:{place(centre - half):.2f}%;width:{200 * half / (high - low):.2f}%'></i>"

    rows = [
        f"<span>{escape(name)}</span><span class=track><u style='left:{place(0):.2f}%'></u>{box('pale', b, o)}"
        f"{box('deep thin', b, i)}<b style='left:{place(b):.2f}%'></b></span><span class=n>{b:.3g} ± {o:.2g}</span>"
        for name, b, i, o in zip(names, at, inner, outer, strict=True)
    ]
    marks = "".join(f"<span style='left:{place(v):.2f}%'>{v:g}</span>" for v in ticks(low, high))
    axis = f"<span></span><span class=ticks aria-hidden=true>{marks}</span><span></span>"
    return f"<div class='plot forest' role=group aria-label='{escape(label, quote=True)}'>{''.join(rows)}{axis}</div>"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between the ends.

    >>> ticks(-0.43, 0.71)
    [-0.4, -0.2, 0.0, 0.2, 0.4, 0.6]
    """
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= most)
    return [round(k * step, 12) + 0.0 for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def trade_off(mu: float, found: tuple[FloatArray, FloatArray] | None = None) -> str:
    """The ROC curve that mu allows to an attacker who has to tell two data sets apart, and the one that was found."""
    from scipy.stats import norm

    size, edge = 220.0, 34.0

    def line(x: FloatArray, y: FloatArray) -> str:
        return " ".join(f"{edge + size * a:.1f},{10 + size * (1 - b):.1f}" for a, b in zip(x, y, strict=True))

    grid = np.concatenate([np.geomspace(1e-4, 0.02, 12), np.linspace(0.03, 1, 60)])
    best = norm.cdf(norm.ppf(np.minimum(grid, 1 - 1e-12)) + mu)
    drawn = ""
    if found is not None:
        thin = slice(None, None, max(1, len(found[0]) // 300))
        attack = line(found[0][thin], found[1][thin])
        drawn = f"<polyline points='{attack}' fill=none stroke='var(--bad)' stroke-width=1.5 />"
    return (
        f"<svg class=curve viewBox='0 0 {size + edge + 12:.0f} {size + 44:.0f}' role=img aria-label='The most true "
        f"positives that mu = {mu:.3g} allows, against false positives'>"
        f"<rect x={edge} y=10 width={size} height={size} fill='var(--track)' />"
        f"<polyline points='{line(np.array([0.0, 1.0]), np.array([0.0, 1.0]))}' fill=none stroke='var(--soft)' "
        "stroke-dasharray='3 4' />"
        f"<polyline points='{edge},{10 + size} {line(grid, best)}' fill=none stroke='var(--deep)' stroke-width=2 />"
        f"{drawn}"
        f"<text x={edge + size / 2} y={size + 40} text-anchor=middle>false alarms</text>"
        f"<text x={-(10 + size / 2)} y=10 transform='rotate(-90)' text-anchor=middle>found</text>"
        f"<text x={edge} y={size + 24} text-anchor=middle>0</text>"
        f"<text x={edge + size} y={size + 24} text-anchor=middle>1</text>"
        f"<text x={edge - 6} y=16 text-anchor=end>1</text></svg>"
    )
