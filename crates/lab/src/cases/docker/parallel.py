"""Many clients of the volume plugin at once, while the daemon is killed.

In each round, VOLUMES clients create a volume each, mount it twice by one ID (as `docker cp` does), write to it, unmount it as often,
and remove it. The daemon is killed at random moments and started again, KILLS times in all. At the end of each round nothing may be
left.
"""

import os, time
from crowd import *

# What the plugin advises when it cannot answer in time. Docker does not repeat an Unmount.
HINTS = ["repeat the command", "start it", "can be repeated"]
PLUGIN = "/run/docker/plugins/bulkhead.sock"


class Client:
    """An engine that requests one volume, and repeats what the plugin asks it to repeat."""

    def __init__(self, n):
        self.name, self.id, self.n_repeated, self.seconds, self.failure = f"v{n}", f"user of v{n}", 0, {}, None

    def request(self, operation, **fields):
        began = time.monotonic()
        while True:
            answer = ask(PLUGIN, "POST", f"/VolumeDriver.{operation}", {"Name": self.name, **fields})
            if not answer["Err"]:
                self.seconds[operation] = max(self.seconds.get(operation, 0), time.monotonic() - began)
                return answer
            self.n_repeated += 1
            if operation == "Unmount" and "the daemon continues it" in answer["Err"]:
                return answer
            assert any(hint in answer["Err"] for hint in HINTS), (operation, self.name, answer["Err"])

    def use(self):
        self.request("Create", Opts={"size": "16M"})
        for _ in range(2):
            at = self.request("Mount", ID=self.id)["Mountpoint"]
        with open(f"{at}/data", "w") as file:
            file.write(self.name)
            file.flush()
            os.fsync(file.fileno())
        for _ in range(2):
            assert open(f"{at}/data").read() == self.name
            self.request("Unmount", ID=self.id)

    def remove(self):
        self.request("Remove")


daemon = start_daemon()
plugin = Server("plugin", ["docker-plugin"], lambda: answers(PLUGIN, "POST", "/Plugin.Activate"))
run_rounds([plugin, daemon], Killer([daemon]), Client, ["Create", "Mount", "Unmount", "Remove"])
