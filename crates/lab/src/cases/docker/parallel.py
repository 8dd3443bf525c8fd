"""Many clients of the volume plugin at once, while the daemon is killed: parallel.py PROGRAM DIRECTORY VOLUMES KILLS.

In each round, VOLUMES clients create a volume each, mount it twice by one ID (as `docker cp` does), write to it, unmount it as often,
and remove it. The daemon is killed at random moments and started again, KILLS times in all. At the end of each round nothing may be
left. Prints one line of JSON for each round.
"""

import http.client, json, os, random, re, signal, socket, subprocess, sys, threading, time

PROGRAM, DIRECTORY, N, KILLS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
# What the plugin advises when it cannot answer in time. Docker does not repeat an Unmount.
HINTS = ["repeat the command", "start it", "can be repeated"]
DAEMON, PLUGIN = "/run/bulkhead/bulkhead.sock", "/run/docker/plugins/bulkhead.sock"


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("bulkhead", timeout=600)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(path, method, target, body=None):
    connection = Connection(path)
    connection.request(method, target, json.dumps(body) if body is not None else None)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def wait_until(what, probe):
    end = time.monotonic() + 300
    while not probe():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def answers(path, method, target):
    try:
        ask(path, method, target, {} if method == "POST" else None)
        return True
    except OSError:
        return False


class Daemon:
    """The daemon, which something restarts whenever it is killed, as systemd does."""

    def __init__(self):
        self.log = open("/run/parallel-daemon.log", "a")
        self.start()

    def start(self):
        began = time.monotonic()
        command = [PROGRAM, "daemon", "--volume-requests", "8"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        wait_until("the daemon answers", lambda: answers(DAEMON, "GET", "/v1/host"))
        self.start_seconds = time.monotonic() - began

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.start()


class Killer(threading.Thread):
    """Kills the daemon at random moments, late enough after each start for some requests to end."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.target, self.n_kills, self.quiet, self.failure = daemon, 0, threading.Lock(), None

    def run(self):
        try:
            while self.n_kills < KILLS:
                time.sleep(random.uniform(0.1, 2) * (1 + self.target.start_seconds))
                with self.quiet:
                    self.target.restart()
                    self.n_kills += 1
        except Exception as error:
            self.failure = error


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


def at_once(clients, work):
    def one(client):
        try:
            work(client)
        except Exception as error:
            client.failure = error

    threads = [threading.Thread(target=one, args=[client]) for client in clients]
    began = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    failures = [client.failure for client in clients if client.failure]
    assert not failures, f"{len(failures)} of {len(clients)} clients failed: {failures[:3]}"
    return round(time.monotonic() - began, 1)


def nothing_is(kind, found):
    assert not found, f"{len(found)} {kind} are left: {found[:3]}"


def check_unmounted():
    # Unmounts that were not answered in time go on.
    wait_until("leases are left", lambda: not ask(DAEMON, "GET", "/v1/leases"))
    nothing_is("mounts", [line for line in open("/proc/self/mountinfo") if "/run/bulkhead/mnt/" in line])


def check_removed():
    for kind in ["volumes", "tenants"]:
        nothing_is(kind, ask(DAEMON, "GET", f"/v1/{kind}"))
    nothing_is("jobs", [job for job in ask(DAEMON, "GET", "/v1/jobs") if job["state"] in ("waiting", "running")])
    nothing_is("files of the pool", [name for name in os.listdir(DIRECTORY) if name != "bulkhead-pool"])
    of_servers = re.compile("ublkb|owner-|[0-9a-f]{8}-")
    nothing_is("files of servers", [name for name in os.listdir("/run/bulkhead/blockd") if of_servers.match(name)])
    nothing_is("findings", ask(DAEMON, "GET", "/v1/host")["findings"])


def main():
    daemon = Daemon()
    subprocess.run([PROGRAM, "pool", "create", "file", "--dir", DIRECTORY], check=True, stdout=subprocess.DEVNULL)
    log = open("/run/parallel-plugin.log", "a")
    plugin = subprocess.Popen([PROGRAM, "docker-plugin"], stdout=log, stderr=log)
    wait_until("the plugin answers", lambda: answers(PLUGIN, "POST", "/Plugin.Activate"))
    killer = Killer(daemon)
    killer.start()
    n_killed = -1
    while n_killed < KILLS:
        n_killed, clients = killer.n_kills, [Client(n) for n in range(N)]
        used = at_once(clients, Client.use)
        with killer.quiet:
            check_unmounted()
        removed = at_once(clients, Client.remove)
        with killer.quiet:
            check_removed()
        assert killer.failure is None, killer.failure
        longest = {key: round(max(c.seconds[key] for c in clients), 1) for key in ["Create", "Mount", "Unmount", "Remove"]}
        n_repeated = sum(client.n_repeated for client in clients)
        figures = {"kills": killer.n_kills, "used": used, "removed": removed, "longest": longest, "repeated": n_repeated}
        print(json.dumps(figures), flush=True)
    subprocess.run([PROGRAM, "pool", "rm", "file"], check=True, stdout=subprocess.DEVNULL)
    for process in [plugin, daemon.process]:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


main()
