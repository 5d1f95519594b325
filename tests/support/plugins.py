"""A pytest plugin that fails when it is loaded, as one that a user has installed may do."""

from __future__ import annotations

from pathlib import Path


def install_broken_plugin(folder: Path) -> Path:
    """Make a folder that, on `sys.path`, is an installed distribution with a plugin that pytest loads by itself."""
    (folder / "broken_plugin.py").write_text("raise ImportError('the broken plugin was loaded')")
    metadata = folder / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pytest11]\nbroken = broken_plugin\n")
    return folder
