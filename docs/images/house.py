"""Draws house.svg from the imports in src/fedmest: packages in their order, who imports whom, and the two walks.

Run `python docs/images/house.py` after packages or modules have changed; a test compares the file with the sources.
"""

import ast
from collections import Counter
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src" / "fedmest"
LAYERS = {
    "core": "exceptions, types, choices, fast arithmetic, files",
    "privacy": "Gaussian DP, budget, accountant, noise, the report",
    "data": "rows by site, packing, validation, declared columns",
    "models": "families, clipping, compiled loops, networks",
    "queries": "what a site can be asked, with its sensitivity; schedules",
    "methods": "schedules of queries, and the updates between them",
    "inference": "covariances, predictions, the paper's rates",
    "runs": "settings, spec, phases, runner, messages, results",
    "site": "policy, ledger, vault, daemon, relay",
    "server": "proposal, coordinator, transports, projects",
    "auditing": "attacks on our own releases",
    "studies": "the paper's experiments, as data",
    "interface": "command line, pages, figures, estimators",
}
LOCAL = ["fit", "RunSpec: phases, schedule", "LocalBackend answers", "Run: aggregate, publish", "Result"]
REMOTE = [
    ["study.toml: Proposal", "Coordinator: RunSpec", "RemoteBackend: RoundRequest", "encode, Transport"],
    ["relay, socket", "Vault: decode, schedule", "query.answer, Ledger", "RoundReply"],
]
ROW, TOP, LEFT, SPINE = 34, 64, 40, 640
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222; }
.name { font-weight: 600; } .small { font-size: 11.5px; fill: #555; } .title { font-size: 16px; font-weight: 600; }
rect { fill: #f4f6f8; stroke: #9aa5b1; rx: 5px; } .site { fill: #fdf3e7; } .back { fill: #ffffff; stroke: none; }
path { fill: none; stroke: #0072b2; stroke-opacity: 0.45; }
.up { stroke: #d55e00; stroke-dasharray: 4 3; stroke-opacity: 0.9; }
line { stroke: #6b7682; } marker path { fill: #6b7682; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e6e6; } .small { fill: #b5b5b5; } rect { fill: #2a3038; stroke: #5b6672; }
  .site { fill: #3a3024; } .back { fill: #16191d; } path { stroke: #56b4e9; } line { stroke: #9aa5b1; }
}
"""


def imports() -> Counter[tuple[str, str]]:
    """How many modules of one package import from another."""
    found: Counter[tuple[str, str]] = Counter()
    for file in sorted(SRC.rglob("*.py")):
        package = file.relative_to(SRC).parts[0]
        targets = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedmest"):
                below = str(node.module).split(".")[1:2] or [alias.name for alias in node.names]
                targets |= set(below)
        for target in targets & set(LAYERS):
            if package in LAYERS and target != package:
                found[package, target] += 1
    return found


def house() -> str:
    """Packages as rows, arcs from a package to those it imports."""
    place = {name: TOP + ROW * number for number, name in enumerate(LAYERS)}
    parts = [f'<text class="title" x="{LEFT}" y="34">Packages: each imports only those above it</text>']
    for name, what in LAYERS.items():
        y = place[name]
        count = sum(1 for file in (SRC / name).rglob("*.py") if file.stat().st_size)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{SPINE - LEFT - 30}" height="{ROW - 8}"/>')
        parts.append(f'<text class="name" x="{LEFT + 12}" y="{y + 18}">{name}</text>')
        parts.append(f'<text class="small" x="{LEFT + 110}" y="{y + 18}">{escape(what)}</text>')
        parts.append(f'<text class="small" x="{SPINE - 44}" y="{y + 18}" text-anchor="end">{count} modules</text>')
    order = list(LAYERS)
    for (package, target), count in sorted(imports().items()):
        begin, end = place[package] + 13, place[target] + 13
        reach = SPINE - 24 + 26 * abs(order.index(package) - order.index(target)) + 24
        kind = ' class="up"' if order.index(target) > order.index(package) else ""
        width = 0.8 + 0.35 * min(count, 10)
        x = SPINE - 26
        parts.append(
            f'<path{kind} stroke-width="{width:.2f}" d="M{x},{begin} C{reach},{begin} {reach},{end} {x},{end}"/>'
        )
    note = TOP + ROW * len(LAYERS) + 14
    text = (
        "Arcs: imports, thicker for more modules. Dashed: a result renders itself as a page; nothing else points down."
    )
    parts.append(f'<text class="small" x="{LEFT}" y="{note}">{text}</text>')
    return "\n".join(parts)


def lane(items: list[str], y: int, kind: str = "") -> str:
    """Boxes from left to right."""
    width, gap = (900 - 18 * (len(items) - 1)) // len(items), 18
    parts = []
    for number, item in enumerate(items):
        x = LEFT + number * (width + gap)
        parts.append(f'<rect{kind} x="{x}" y="{y}" width="{width}" height="34"/>')
        parts.append(
            f'<text class="small" x="{x + width / 2:g}" y="{y + 21}" text-anchor="middle">{escape(item)}</text>'
        )
        if number:
            parts.append(f'<line x1="{x - gap}" y1="{y + 17}" x2="{x - 2}" y2="{y + 17}" marker-end="url(#tip)"/>')
    return "\n".join(parts)


def draw() -> str:
    """The whole picture."""
    first = TOP + ROW * len(LAYERS) + 56
    walks = [
        f'<text class="title" x="{LEFT}" y="{first}">Two walks along one schedule</text>',
        f'<text class="small" x="{LEFT}" y="{first + 24}">all sites in this process</text>', lane(LOCAL, first + 32),
        f'<text class="small" x="{LEFT}" y="{first + 92}">between sites: the server</text>',
        lane(REMOTE[0], first + 100),
        f'<text class="small" x="{LEFT}" y="{first + 160}">a site, which alone sees its rows; the reply goes back to '
        "Run, as above</text>", lane(REMOTE[1], first + 168, ' class="site"'),
    ]  # fmt: skip
    height = first + 220
    tip = '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
    tip += '<path d="M0,0 L7,3.5 L0,7 z"/></marker></defs>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 {height}" role="img" aria-label="The packages">'
    back = f'<rect class="back" x="0" y="0" width="980" height="{height}"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", tip, back, house(), *walks, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "house.svg").write_text(draw(), encoding="utf-8")
