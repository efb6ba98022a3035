"""Who carries a schedule out: `local`, all sites in this process; `flower`, sites on a network (imported by name)."""

from fedmest.engines.base import Engine
from fedmest.engines.local import LocalEngine

__all__ = ["Engine", "LocalEngine"]
