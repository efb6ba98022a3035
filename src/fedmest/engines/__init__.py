"""Who carries a schedule out: `local`, all sites in this process."""

from fedmest.engines.local import LocalEngine

__all__ = ["LocalEngine"]
