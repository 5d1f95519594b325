"""A folder that is compared as text, so that /a reaches /ab."""

from holdall.model import keys


def in_folder(folder):
    return folder[:-1] or "/", folder[:-1] + "\U0010ffff"


keys.in_folder = in_folder
