# Calls of a kubelet that passes the SELinux context of a pod as a mount option, on a volume with ext4 and one with XFS.

import errno, os, subprocess
import grpc
from crowd import *

KUBELET, SOCKET = "/run/kubelet", "/run/csi.sock"
ONE, OTHER, UNKNOWN = [f"system_u:object_r:{end}" for end in ["container_file_t:s0:c1,c2", "container_file_t:s0:c3,c4", "none_t:s0"]]
STAGING, SECOND, POD = [f"{KUBELET}/{name}" for name in ["staging", "second", "pods"]]
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
channel = grpc.insecure_channel(f"unix:{SOCKET}")


def call(service, method, fields):
    send = channel.unary_unary(f"/csi.v1.{service}/{method}")
    return send(message(fields), timeout=120, wait_for_ready=True)


def refused(code, words, *request):
    try:
        call(*request)
    except grpc.RpcError as error:
        assert error.code() == code and words in error.details(), (request, error.code(), error.details())
    else:
        raise AssertionError((request, "succeeded"))


def answers():
    with grpc.insecure_channel(f"unix:{SOCKET}") as probe:
        try:
            probe.unary_unary("/csi.v1.Identity/GetPluginInfo")(b"", timeout=5)
            return True
        except grpc.RpcError:
            return False


def capability(context):
    """SINGLE_NODE_WRITER, with the flag as the kubelet writes it."""
    mount = {2: f'context="{context}"'} if context else {}
    return message({2: message(mount), 3: message({1: 1})})


def stage(id, context, path=STAGING):
    return "Node", "NodeStageVolume", {1: id, 3: path, 4: capability(context)}


def publish(id, context, pod):
    return "Node", "NodePublishVolume", {1: id, 3: STAGING, 4: f"{POD}/{pod}", 5: capability(context)}


def options(path):
    """Those of the file system that is mounted at a path; None if there is none."""
    lines = [line.split() for line in open("/proc/self/mountinfo")]
    found = [fields[-1] for fields in lines if fields[4] == path]
    return found[-1] if found else None


def label(path):
    return os.getxattr(path, "security.selinux").rstrip(b"\0").decode()


def mounted_with(path, context):
    found = options(path)
    assert (f'context="{context}"' in found and "seclabel" not in found), (path, found)


def use(volume, fs):
    size = message({1: (320 if fs == "xfs" else 64) << 20})
    plain = message({2: message({1: fs}), 3: message({1: 1})})
    created = call("Controller", "CreateVolume", {1: volume, 2: size, 3: plain, 4: message({1: "provision", 2: "on-demand"})})
    id = texts(texts(created)[1])[2].decode()
    mount_point = f"/run/bulkhead/mnt/{id}"

    refused(grpc.StatusCode.INVALID_ARGUMENT, "policy does not know", *stage(id, UNKNOWN))
    nothing_is("leases", ask(DAEMON, "GET", "/v1/leases"))

    # The context is that of all files, and of all mounts of the volume, and no label is written.
    for _ in range(2):
        call(*stage(id, ONE))
    for pod in ["a", "a", "b"]:
        call(*publish(id, ONE, pod))
    file = f"{POD}/a/file"
    open(file, "w").write(volume)
    for path in [mount_point, f"{POD}/a", f"{POD}/b"]:
        mounted_with(path, ONE)
    assert label(file) == label(f"{POD}/b/file") == label(POD + "/a") == ONE, label(file)
    try:
        os.setxattr(file, "security.selinux", OTHER.encode())
        raise AssertionError("a file has got another label")
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error

    for context in [OTHER, None]:
        refused(grpc.StatusCode.ALREADY_EXISTS, "SELinux", *stage(id, context))
        refused(REFUSED, "SELinux", *stage(id, context, SECOND))
        refused(REFUSED, "SELinux", *publish(id, context, "c"))

    daemon.restart()
    call(*stage(id, ONE))
    refused(grpc.StatusCode.ALREADY_EXISTS, "SELinux", *stage(id, OTHER))
    call(*publish(id, ONE, "c"))
    assert open(f"{POD}/c/file").read() == volume and label(f"{POD}/c/file") == ONE

    # A lost mount is mounted again with it.
    for pod in "abc":
        call("Node", "NodeUnpublishVolume", {1: id, 2: f"{POD}/{pod}"})
    subprocess.run(["umount", mount_point], check=True)
    wait_until("the volume is mounted again", lambda: options(mount_point))
    mounted_with(mount_point, ONE)
    assert label(f"{mount_point}/file") == ONE

    # One that is busy when it is unstaged keeps it. Staged again, it counts again, and the daemon does not end its lease.
    with open(f"{mount_point}/file"):
        for refuse_first in [False, True]:
            refused(REFUSED, "in use", "Node", "NodeUnstageVolume", {1: id, 2: STAGING})
            if refuse_first:
                refused(REFUSED, "in use", *stage(id, OTHER))
            call(*stage(id, ONE))
            leases = ask(DAEMON, "GET", "/v1/leases")
            assert [lease["mounts"] for lease in leases] == [1], leases

    def unstage():
        call("Node", "NodeUnstageVolume", {1: id, 2: STAGING})
        assert options(mount_point) is None

    # Once nothing uses it, the next pod has another one; without one, files have labels of their own, which can be changed.
    unstage()
    call(*stage(id, OTHER))
    mounted_with(mount_point, OTHER)
    assert label(f"{mount_point}/file") == OTHER
    unstage()
    call(*stage(id, None))
    call(*publish(id, None, "a"))
    found = options(f"{POD}/a")
    assert "seclabel" in found and "context=" not in found, found
    assert label(file) not in [ONE, OTHER], label(file)
    os.setxattr(file, "security.selinux", OTHER.encode())
    assert label(file) == OTHER
    call("Node", "NodeUnpublishVolume", {1: id, 2: f"{POD}/a"})
    unstage()
    check_unmounted(KUBELET)
    call("Controller", "DeleteVolume", {1: id})


for directory in [STAGING, SECOND, POD]:
    os.makedirs(directory)
devices, daemon = block_devices(), start_daemon()
serve = ["csi", "--mode", "all", "--node-id", "node-1", "--endpoint", f"unix://{SOCKET}", "--kubelet-dir", KUBELET]
driver = Server("driver", serve, answers)

# Before a policy is loaded, no context is known.
call("Controller", "CreateVolume", {1: "early", 2: message({1: 16 << 20}), 3: capability(ONE)})
refused(grpc.StatusCode.INVALID_ARGUMENT, "none is loaded", *stage("file/early", ONE))
call("Controller", "DeleteVolume", {1: "file/early"})
load = os.open("/sys/fs/selinux/load", os.O_WRONLY)
policy = open("/run/policy", "rb").read()
assert os.write(load, policy) == len(policy)
os.close(load)

for fs in ["ext4", "xfs"]:
    use(f"on-{fs}", fs)
check_removed(devices)
subprocess.run([PROGRAM, "pool", "rm", "file"], check=True, stdout=subprocess.DEVNULL)
for server in [driver, daemon]:
    server.stop()
