"""AG2 under its installed name: `ag2`, or `autogen.beta` before 1.0 (`make ag2-beta`)."""

from __future__ import annotations

try:
    from ag2 import Agent, KnowledgeConfig, MemoryStream, compact, events, knowledge, policies, testing
except ImportError:
    from autogen.beta import Agent, KnowledgeConfig, MemoryStream, compact, events, knowledge, policies, testing

__all__ = ["Agent", "KnowledgeConfig", "MemoryStream", "compact", "events", "knowledge", "policies", "testing"]
