"""Files that are synced, and how many of them are complete later.

power_cut.py write DIRECTORY…: writes file after file in all directories in turn, each synced with its directory.
power_cut.py count DIRECTORY: prints how many are complete.
"""

import os, sys

N_FILES = 60


def content(n):
    return b"%04d" % n * 1024


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def write(directories):
    for n in range(N_FILES):
        for at in directories:
            with open(f"{at}/{n}", "wb") as file:
                file.write(content(n))
                file.flush()
                os.fsync(file.fileno())
            sync(at)


def is_complete(path, n):
    try:
        with open(path, "rb") as file:
            return file.read() == content(n)
    except OSError:
        return False


if sys.argv[1] == "write":
    write(sys.argv[2:])
else:
    print(sum(is_complete(f"{sys.argv[2]}/{n}", n) for n in range(N_FILES)))
