"""An edit that writes over whatever others have written meanwhile."""

from holdall.files.volume import Files
from holdall.ops import ANY, Put, replace
from holdall.runtime.programs import Sleep, run

edit = Files._edit


def forgetful(self, *args, **options):
    program, reply = edit(self, *args, **options), None
    while True:
        try:
            request = program.send(reply)
        except StopIteration as done:
            return done.value
        if isinstance(request, list) and isinstance(request[-1], Put):
            yield Sleep(0.001)
            request = [replace(request[-1], expect=ANY)]
        reply = yield request


Files.edit = run(forgetful)
