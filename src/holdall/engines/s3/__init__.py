"""The object-store engine: a store in a bucket of S3 or a service like it, with a local cache."""

from .client import Client
from .credentials import find_source
from .engine import S3Engine, S3Options, find_address

__all__ = ["Client", "S3Engine", "S3Options", "find_address", "find_source"]
