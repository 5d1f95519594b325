"""A lease that is only asked for, and checks nothing."""

from holdall.live.leases import Lease


def unfenced(self, batch):
    return (yield batch)


Lease._guard = unfenced
