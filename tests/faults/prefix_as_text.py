"""A prefix that is compared as text, so that ("a",) reaches ("ab",)."""

from holdall.model import keys


def below(encoded):
    return (encoded[:-1], encoded[:-1] + "\U0010ffff") if encoded else ("", None)


keys.below = below
