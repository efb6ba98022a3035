"""How far a command is, on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmest.studies.runner import Done

Progress = Callable[[int, int], None] | None


@contextmanager
def bar(label: str) -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeElapsedColumn()
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _line_a_minute() -> Callable[["Done"], None]:
    started = said = time.monotonic()
    first = -1.0

    def tell(now: "Done") -> None:
        nonlocal said, first
        clock = time.monotonic()
        if first < 0:
            first = now.work
        if clock - said < 60 or now.work == first:
            return
        said = clock
        minutes = (now.of_work - now.work) * (clock - started) / (now.work - first) / 60
        print(f"fedmest: {now.cells:,} of {now.of_cells:,} cells, about {minutes:.0f} minutes left", file=sys.stderr)

    return tell


@contextmanager
def work_bar() -> Iterator[Callable[["Done"], None]]:
    """Cells done and the time left: a bar where stderr is a terminal, else a line a minute."""
    if not sys.stderr.isatty():
        yield _line_a_minute()
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeElapsedColumn(), bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )  # fmt: skip
    # cells differ in length: the bar counts the work that is in them
    with bars.Progress(*columns, console=Console(stderr=True), speed_estimate_period=300, transient=True) as bar:
        task = bar.add_task("cells")
        yield lambda now: bar.update(
            task, description=f"{now.cells:,} of {now.of_cells:,} cells", completed=now.work, total=now.of_work
        )
