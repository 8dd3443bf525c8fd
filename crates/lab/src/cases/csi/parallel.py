"""Many calls to the CSI driver at once, while driver and daemon are killed and the clock jumps.

In each round, VOLUMES clients create a volume each, stage it, publish it at two targets, write to it, unpublish and unstage it, and
delete it; each call is made once more after it has succeeded, as the kubelet does. The daemon or the driver is killed at random moments
and started again, KILLS times in all, each time on another day. At the end of each round nothing may be left.
"""

import os, random, time
import grpc
from crowd import *

KUBELET, SOCKET = "/run/kubelet", "/run/csi.sock"
# What the kubelet and the sidecars repeat.
REPEATED = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED]
# A connection for each client, which is established again soon after the driver's end. The minimum is also the time that an attempt has: less,
# and 100 clients of a busy machine give up and try again for ever.
CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 5000),
]
DAY = 86400

WRITER = message({2: message({}), 3: message({1: 1})})


class Client:
    """An orchestrator's calls for one volume."""

    def __init__(self, n):
        self.name, self.n_repeated, self.seconds, self.failure = f"v{n}", 0, {}, None
        self.channel = grpc.insecure_channel(f"unix:{SOCKET}", CHANNEL)
        self.staging, self.targets = f"{KUBELET}/staging/v{n}", [f"{KUBELET}/pods/v{n}/{target}" for target in "ab"]

    def once(self, service, call, fields):
        began = time.monotonic()
        method = self.channel.unary_unary(f"/csi.v1.{service}/{call}")
        while True:
            try:
                answer = method(message(fields), timeout=120, wait_for_ready=True)
                self.seconds[call] = max(self.seconds.get(call, 0), time.monotonic() - began)
                return answer
            except grpc.RpcError as error:
                assert error.code() in REPEATED, (call, self.name, error.code(), error.details())
                self.n_repeated += 1
                time.sleep(random.uniform(0.1, 1))

    def call(self, service, call, fields):
        first = self.once(service, call, fields)
        assert self.once(service, call, fields) == first, call
        return first

    def use(self):
        for directory in [self.staging, os.path.dirname(self.targets[0])]:
            os.makedirs(directory, exist_ok=True)
        size = message({1: 16 << 20})
        volume = texts(self.call("Controller", "CreateVolume", {1: self.name, 2: size, 3: WRITER}))[1]
        self.id = texts(volume)[2]
        self.call("Node", "NodeStageVolume", {1: self.id, 3: self.staging, 4: WRITER})
        for target in self.targets:
            self.call("Node", "NodePublishVolume", {1: self.id, 3: self.staging, 4: target, 5: WRITER})
        with open(f"{self.targets[0]}/data", "w") as file:
            file.write(self.name)
            file.flush()
            os.fsync(file.fileno())
        for target in self.targets:
            assert open(f"{target}/data").read() == self.name
            self.call("Node", "NodeUnpublishVolume", {1: self.id, 2: target})
            assert not os.path.exists(target), target
        self.call("Node", "NodeUnstageVolume", {1: self.id, 2: self.staging})

    def remove(self):
        self.call("Controller", "DeleteVolume", {1: self.id})
        self.channel.close()


def driver_answers():
    with grpc.insecure_channel(f"unix:{SOCKET}", CHANNEL) as channel:
        try:
            channel.unary_unary("/csi.v1.Identity/GetPluginInfo")(b"", timeout=5)
            return True
        except grpc.RpcError:
            return False


def clock():
    return time.clock_gettime(time.CLOCK_REALTIME)


def jump():
    time.clock_settime(time.CLOCK_REALTIME, clock() + random.choice([-300, -1, 1, 300]) * DAY)


os.makedirs(f"{KUBELET}/pods")
offset = clock() - time.monotonic()
daemon = start_daemon()
serve = ["csi", "--mode", "all", "--node-id", "node-1", "--endpoint", f"unix://{SOCKET}", "--kubelet-dir", KUBELET]
driver = Server("driver", serve, driver_answers)
calls = ["CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "DeleteVolume"]
try:
    run_rounds([driver, daemon], Killer([daemon, driver], jump), Client, calls, [KUBELET])
finally:
    time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + offset)
