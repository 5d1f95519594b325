"""A value that is handed out twice."""

import functools

from holdall import engine

engine.decode = functools.cache(engine.decode)
