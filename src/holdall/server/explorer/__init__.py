"""The explorer: a web page that shows what a store holds. It uses the REST API and its events, and nothing else.

The page is in `static/`: ES modules and CSS as they are written, without a build step. `pages.py` serves them.
"""

from .pages import ROUTES

__all__ = ["ROUTES"]
