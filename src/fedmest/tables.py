"""What the commands print for people: paragraphs and tables on a page."""

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedmest.federation import Federation
    from fedmest.result import Result

WIDTH = 100  # of paragraphs, and of pages that are not a terminal


def open_page() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)


def say(page: "Console", text: str) -> None:
    page.print(text, width=min(page.width, WIDTH))


def plain_table(title: str | None = None) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = Text(title, style="bold") if title else None
    return Table(
        title=caption, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        header_style="bold",
    )  # fmt: skip


def coefficients(title: str | None, results: dict[str, "Result"], difference: bool = False) -> "Table":
    """Coefficients side by side, one column a result; classes of a multinomial model one below the other."""
    from rich.text import Text

    from fedmest.result import aligned

    first = next(iter(results.values()))
    table = plain_table(title)
    table.add_column("")
    for head in [*results, *(["difference"] if difference else [])]:
        table.add_column(Text(head), justify="right", no_wrap=True)
    blocks = len(first.coefficients)
    for block in range(blocks):
        if blocks > 1:
            table.add_row(Text(f"class {first.model.classes[block]}", style="bold"))
        for j, name in enumerate(first.names):
            values = [float(result.coefficients[block, j]) for result in results.values()]
            if difference:
                values.append(values[-1] - values[0])
            table.add_row(Text(name), *aligned(values))
        if block + 1 < blocks:
            table.add_section()
    return table


def show_comparison(federation: "Federation", model: str, results: dict[str, "Result"]) -> None:
    page = open_page()
    say(page, f"{model} regression of {federation.target_name}: {federation.n_rows:,} rows at "
               f"{federation.n_sites:,} sites")  # fmt: skip
    first = next(iter(results.values()))
    fitting = max(1, (page.width - max(len(n) for n in first.names)) // 14)
    names = list(results)
    for start in range(0, len(names), fitting):
        page.print()
        page.print(coefficients(None, {name: results[name] for name in names[start : start + fitting]}))
    facts = plain_table()
    for head in ("method", "mu", "third-party mu", "certified", "rounds", "bytes"):
        facts.add_column(head, justify="left" if head == "method" else "right")
    for name, result in results.items():
        report, traffic = result.privacy, result.communication
        facts.add_row(
            name, f"{report.mu:.4g}", f"{report.third_party:.4g}", "yes" if report.certified else "no",
            f"{traffic.rounds:,}", f"{traffic.bytes:,}",
        )  # fmt: skip
    page.print()
    page.print(facts)
    private = [name for name, result in results.items() if math.isfinite(result.privacy.mu)]
    if len(private) > 1:
        page.print()
        say(page, "Each private method spends its own budget: publish one, or the squares of mu add up.")
