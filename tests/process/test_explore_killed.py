"""The planning page's processes, killed."""

import multiprocessing

from fedmest.interface.explorer.server import INITIAL, Explorer


def test_it_goes_on_when_a_process_is_killed() -> None:
    with Explorer(processes=2) as explorer:
        before = list(explorer.answers(INITIAL))
        children = multiprocessing.active_children()
        assert children
        for child in children:
            child.kill()
            child.join()
        assert list(explorer.answers(INITIAL)) == before
