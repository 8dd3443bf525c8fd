"""What docker_parallel and csi_parallel share: servers that are killed and started again, clients that run at once, and what may not be left.

Arguments of each script: PROGRAM DIRECTORY VOLUMES KILLS, where DIRECTORY is that of the pool.
"""

import glob, http.client, json, os, random, re, signal, socket, subprocess, sys, threading, time

PROGRAM, DIRECTORY, N, KILLS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
DAEMON = "/run/bulkhead/bulkhead.sock"


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


class Server:
    """A program that something restarts whenever it is killed, as systemd and Kubernetes do."""

    def __init__(self, name, arguments, is_ready):
        self.name, self.command, self.is_ready = name, [PROGRAM, *arguments], is_ready
        self.log = open(f"/run/parallel/{name}.log", "a")
        self.start()

    def start(self):
        began = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        wait_until(f"the {self.name} answers", self.is_ready)
        self.start_seconds = time.monotonic() - began

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0, f"the {self.name} ended with {self.process.returncode}"


def start_daemon():
    ready = lambda: answers(DAEMON, "GET", "/v1/host")
    daemon = Server("daemon", ["daemon", "--volume-requests", "8"], ready)
    subprocess.run([PROGRAM, "pool", "create", "file", "--dir", DIRECTORY], check=True, stdout=subprocess.DEVNULL)
    return daemon


class Killer(threading.Thread):
    """Kills one of the servers at random moments, late enough after each start for some requests to end."""

    def __init__(self, servers, before_kill=lambda: None):
        super().__init__(daemon=True)
        self.servers, self.before_kill = servers, before_kill
        self.n_kills, self.quiet, self.failure = 0, threading.Lock(), None

    def run(self):
        try:
            while self.n_kills < KILLS:
                target = random.choice(self.servers)
                time.sleep(random.uniform(0.1, 2) * (1 + target.start_seconds))
                with self.quiet:
                    self.before_kill()
                    target.restart()
                    self.n_kills += 1
        except Exception as error:
            self.failure = error


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


def check_unmounted(*directories):
    # What was not answered in time goes on.
    wait_until("leases are left", lambda: not ask(DAEMON, "GET", "/v1/leases"))
    below = ["/run/bulkhead/mnt/", *directories]
    nothing_is("mounts", [line for line in open("/proc/self/mountinfo") if any(path in line for path in below)])


def check_removed(devices):
    for kind in ["volumes", "tenants"]:
        nothing_is(kind, ask(DAEMON, "GET", f"/v1/{kind}"))
    nothing_is("jobs", [job for job in ask(DAEMON, "GET", "/v1/jobs") if job["state"] in ("waiting", "running")])
    nothing_is("files of the pool", [name for name in os.listdir(DIRECTORY) if name != "bulkhead-pool"])
    of_servers = re.compile("ublkb|owner-|[0-9a-f]{8}-")
    nothing_is("files of servers", [name for name in os.listdir("/run/bulkhead/blockd") if of_servers.match(name)])
    nothing_is("devices", sorted(block_devices() - devices))
    nothing_is("findings", ask(DAEMON, "GET", "/v1/host")["findings"])


def block_devices():
    return set(glob.glob("/dev/ublk[bc]*"))


def run_rounds(servers, killer, new_client, operations, directories=[]):
    """Rounds of N clients, until all kills are done. Prints one line of JSON for each round."""
    devices, n_killed = block_devices(), -1
    killer.start()
    while n_killed < KILLS:
        n_killed, clients = killer.n_kills, [new_client(n) for n in range(N)]
        used = at_once(clients, lambda client: client.use())
        with killer.quiet:
            check_unmounted(*directories)
        removed = at_once(clients, lambda client: client.remove())
        with killer.quiet:
            check_removed(devices)
        assert killer.failure is None, killer.failure
        longest = {key: round(max(client.seconds[key] for client in clients), 1) for key in operations}
        n_repeated = sum(client.n_repeated for client in clients)
        figures = {"kills": killer.n_kills, "used": used, "removed": removed, "longest": longest, "repeated": n_repeated}
        print(json.dumps(figures), flush=True)
    subprocess.run([PROGRAM, "pool", "rm", "file"], check=True, stdout=subprocess.DEVNULL)
    for server in servers:
        server.stop()
