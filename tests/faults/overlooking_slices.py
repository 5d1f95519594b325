"""A large folder moved in slices, each of which overlooks the rest of the subfolder where the one before ended."""

from holdall import ops
from holdall.files import large_moves


def overlooking(namespace, src, dst, after, limit):
    return ops.MoveSlice(namespace, src, dst, after and after.rsplit("/", 1)[0] + "0", limit)


class Ops:
    """`ops`, with another `MoveSlice`."""

    def __getattr__(self, name):
        return overlooking if name == "MoveSlice" else getattr(ops, name)


large_moves.ops = Ops()
