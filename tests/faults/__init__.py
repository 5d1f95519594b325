"""Faults for the mutation controls: importing a module plants one fault in every engine that can have it."""

import hashlib

from holdall.engines.redis import shards


def replaced(text, old, new):
    """Replace `old` in a text, and fail if it is not there: then no fault would be planted."""
    assert old in text, f"nothing to plant a fault in: {old!r} is not in {text!r:.300}"
    return text.replace(old, new)


def replace_in_scripts(old, new):
    """Replace text in the scripts of the Redis engine."""
    scripts = [script for script in shards._load_scripts().values() if old in script.text]
    assert scripts, f"nothing to plant a fault in: no script has {old!r}"
    for script in scripts:
        script.text = script.text.replace(old, new)
        script.sha = hashlib.sha1(script.text.encode()).hexdigest()
