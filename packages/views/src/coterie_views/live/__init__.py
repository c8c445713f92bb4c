"""The live page: `coterie serve` shows running and finished runs in a browser, and never touches them."""

from coterie_views.live.library import Library

__all__ = ["Library"]
