"""What keeps a learner's code away from everything but its own inputs.

Two steps. `enter_namespaces` is called once by the process that will fork the others, before it imports anything
large: no network, no view of other processes, folders of its own. `restrict` is called in each forked child, right
before a learner's code runs there: limits, an allow-list of files, no way to signal others, no capabilities.

Each says which protections took effect on this machine. Where one can't be had, grading goes on and says so.
What can't be had anywhere: a limit on the memory of all processes of an answer together, which takes a control group
of its own; and observers that an answer can't reach, because they run where it runs. It can lie about how it came to
a result, never about the result.
Sources: the manual pages unshare(2), user_namespaces(7), landlock(7), setrlimit(2), prctl(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import shutil
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """For one exercise. `wall` (of each case) and `total` are by the grader's clock; the kernel keeps the others."""

    wall: float = 10.0  # seconds
    total: float = 40.0  # seconds
    cpu: int = 40  # seconds
    memory: int = 6 * 1024 * MIB  # of address space; PyTorch alone maps about 600 MiB
    processes: int = 64
    open_files: int = 256
    file_size: int = 64 * MIB
    disk: int = 256 * MIB  # for all files together


# ---- in the process that forks -----------------------------------------------------------------------------------

NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NETWORK = (
    0x00020000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)


def seclude(hidden: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Leave the machine behind as far as it lets us; the protections that took effect.

    Afterwards the folders `hidden` look empty, and so do the places where people and programs keep what is theirs,
    up to the folders `kept` in them.
    """
    if not sys.platform.startswith("linux"):
        return []
    if not _works_in_a_child(hidden, kept):
        return _adopt_orphans()
    return _seclude(hidden, kept)


def _seclude(hidden: Sequence[str], kept: Sequence[str]) -> list[str]:
    active = enter_namespaces()
    for place in PRIVATE_PLACES:
        _leave_only([folder for folder in kept if place in Path(folder).parents], place)
    return active + _hide(hidden) + _limit_process_numbers()


def _works_in_a_child(hidden: Sequence[str], kept: Sequence[str]) -> bool:
    """Tried there first, because what has been done half can't be undone."""
    child = os.fork()
    if not child:
        with suppress(OSError):
            _seclude(hidden, kept)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def enter_namespaces() -> list[str]:
    """Leave the machine's network, processes and mounts behind; the protections that took effect.

    Where process namespaces can be had the caller goes on as process 1 of its own: when it ends, everything that
    was ever started in it ends. Call it while the process has one thread. Raises OSError where it can't be had, or
    only half of it.
    """
    user, group = os.getuid(), os.getgid()
    if _libc().unshare(NEW_USERS | NEW_MOUNTS | NEW_IPC | NEW_PIDS | NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "this machine gives no namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    if _libc().mount(b"none", b"/", None, RECURSIVE | PRIVATE, None):
        raise OSError("mounts can't be made private")
    _continue_as_process_one()
    _turn_loopback_on()
    own_proc = _libc().mount(b"proc", b"/proc", b"proc", NO_SUID | NO_DEVICES | NO_EXEC, None) == 0
    return ["no network", "own process namespace"] + (["other processes invisible"] if own_proc else [])


NO_SUID, NO_DEVICES, NO_EXEC, RECURSIVE, PRIVATE, DETACH = 2, 4, 8, 16384, 1 << 18, 2
READ_ONLY, BIND, ADOPT_ORPHANS = 1, 4096, 36


def _adopt_orphans() -> list[str]:
    """Without a process namespace: whoever loses its parent becomes a child of this process, where it is found."""
    return ["no process left behind"] if _libc().prctl(ADOPT_ORPHANS, 1, 0, 0, 0) == 0 else []


def children() -> list[int]:
    """This process's children, adopted ones too; none where the system doesn't list them."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(number) for text in lists for number in text.read_text().split()]


def _hide(folders: Sequence[str]) -> list[str]:
    """Put an empty folder over each that is still to be seen."""
    for folder in filter(os.path.isdir, folders):
        _mount(b"tmpfs", Path(folder), b"tmpfs", NO_SUID | NO_DEVICES | READ_ONLY, b"size=4k,mode=0500")
    return ["the course's answers hidden"]


# Sockets with a name stand here (of a desktop, of Docker), and no other protection keeps anyone from calling there.
PRIVATE_PLACES = [Path(place) for place in ("/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv")]


def _leave_only(kept: Sequence[str], place: Path) -> None:
    """Empty a folder for all that starts from here on, but for the folders `kept` in it."""
    if not place.is_dir() or place.is_symlink():
        return
    places = {folder: os.open(folder, os.O_PATH) for folder in kept}
    _mount(b"tmpfs", place, b"tmpfs", NO_SUID | NO_DEVICES, b"size=64k,mode=0755")
    for folder, opened in places.items():
        os.makedirs(folder)
        _mount(f"/proc/self/fd/{opened}".encode(), Path(folder), None, BIND | RECURSIVE, None)
        os.close(opened)


def _mount(source: bytes, target: Path, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if _libc().mount(source, bytes(target), kind, flags, options):
        raise OSError(ctypes.get_errno(), f"{target} can't be mounted")


PER_NAMESPACE = (6, 14)  # the Linux from which on a process namespace has a `pid_max` of its own
RESERVED = 300  # process numbers that are not given out a second time
IN_ALL = 128  # processes and threads


def _limit_process_numbers() -> list[str]:
    """When no number is left, nothing more starts: this binds root too, which RLIMIT_NPROC does not.

    On an older Linux the number is the whole machine's and is left alone.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if not release or tuple(map(int, release.groups())) < PER_NAMESPACE:
        return []
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(RESERVED + IN_ALL))
    except OSError:
        return []
    return ["limited processes"]


def _continue_as_process_one() -> None:
    """The first child after the unshare is process 1; this process waits for it and ends as it does."""
    child = os.fork()
    if child:
        os.closerange(3, 1024)  # or the grader's end of a channel would outlive its reader
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _turn_loopback_on() -> None:
    """Processes of one exercise may talk to each other, as distributed training does; nobody else is there."""
    get, put, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        name = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(link, get, name))[1]
        fcntl.ioctl(link, put, struct.pack("16sH14s", b"lo", flags | up, b""))


def empty(folder: Path) -> None:
    """Remove what is in a folder, where a file system of its own can't be had."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            _make_removable(entry)
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _make_removable(folder: Path) -> None:
    """A folder that its owner can't enter can't be emptied either."""
    folder.chmod(0o700)
    for place, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(os.path.join(place, name)):
                os.chmod(os.path.join(place, name), 0o700)


def fresh_folder(path: Path, limits: Limits) -> bool:
    """Put an empty file system of limited size at `path`, in the place of the last one; False where that can't be."""
    if not sys.platform.startswith("linux"):
        return False
    _libc().umount2(bytes(path), DETACH)
    options = f"size={limits.disk},nr_inodes=20000,mode=0700".encode()
    return _libc().mount(b"tmpfs", bytes(path), b"tmpfs", NO_SUID | NO_DEVICES, options) == 0


# ---- in the child, before the learner's code ---------------------------------------------------------------------


def restrict(readable: Iterable[Path], writable: Iterable[Path], limits: Limits) -> list[str]:
    """Keep this process, and all that it starts, to what is listed; the protections that took effect."""
    active = _limit_resources(limits)
    if sys.platform.startswith("linux"):
        _libc().unshare(
            NEW_IPC
        )  # memory segments and queues outlive their processes, but not their namespace
        _libc().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        active += _landlock(readable, writable)
        _drop_capabilities()
        _be_the_first_to_go()
    return active


LIMITED = {  # what the limits are called in the report
    "RLIMIT_CPU": "limited CPU",
    "RLIMIT_AS": "limited memory",
    "RLIMIT_NOFILE": "limited open files",
    "RLIMIT_FSIZE": "limited file size",
    "RLIMIT_NPROC": "limited processes",
    "RLIMIT_CORE": "",
}


def _limit_resources(limits: Limits) -> list[str]:
    most = (limits.cpu, limits.memory, limits.open_files, limits.file_size, limits.processes, 0)
    active = [said for (name, said), value in zip(LIMITED.items(), most) if _limit(name, value) and said]
    does_not_bind = "limited processes" if os.getuid() == 0 else ""  # the kernel does not count root's
    return [said for said in active if said != does_not_bind]


def _limit(name: str, most: int) -> bool:
    """Not every system knows or accepts every limit."""
    try:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    except (AttributeError, ValueError, OSError):
        return False
    return True


def _be_the_first_to_go() -> None:
    """Where the whole machine runs out of memory, the kernel takes this process before the grader's."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


NO_NEW_PRIVILEGES = 38


def _drop_capabilities() -> None:
    """Within its own namespace a process may do much; a learner's may not."""
    header = struct.pack("Ii", 0x20080522, 0)
    _libc().capset(header, struct.pack("IIIIII", 0, 0, 0, 0, 0, 0))


# Landlock: an allow-list of files, by the numbers of linux/landlock.h

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
TRUNCATE, DEVICE_CONTROL = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_CONTROL
NO_ABSTRACT_SOCKETS, NO_SIGNALS = 1, 2


def _landlock(readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    version = _libc().syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return []
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    scoped = NO_ABSTRACT_SOCKETS | NO_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _libc().syscall(CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow(rules, path, handled & (EXECUTE | READ_FILE | READ_FOLDER))
    for path in writable:
        _allow(rules, path, handled)
    refused = _libc().syscall(RESTRICT_SELF, rules, 0)
    os.close(rules)
    if refused:
        return []
    return ["only its own files"] + (["no signals to others"] if scoped else [])


def _allow(rules: int, path: Path, access: int) -> None:
    if not path.exists():
        return
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    access = access if path.is_dir() else access & OF_FILES
    _libc().syscall(ADD_RULE, rules, 1, struct.pack("=Qi", access, place), 0)
    os.close(place)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def system_files() -> list[Path]:
    """What Python and PyTorch read on any machine: programs, libraries, facts about the processor."""
    places = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/proc",
        "/sys/devices",  # facts about the machine: gloo, which connects ranks, asks for them
        "/sys/bus/pci/devices",
        "/sys/class/net",
    ]
    places += [sys.prefix, sys.base_prefix, sys.exec_prefix]
    return [Path(place) for place in dict.fromkeys(places)]


def devices() -> list[Path]:
    """Devices that hold nothing, and the shared memory of worker processes."""
    return [Path(place) for place in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/shm")]
