"""The seccomp filter: system calls that a program may not make.

A deny list in classic BPF, built by hand so that no library is needed. Calls that reach outside
the sandbox's namespaces or expose large parts of the kernel fail with EPERM. `clone3` fails with
ENOSYS: a filter cannot read its flags, and the C library then falls back to `clone`, whose flags
it can read. `socket` is denied because a network namespace does not block vsock and no program
needs one to compute; `socketpair` stays allowed. A call that uses another architecture's numbers
kills the process, because the list would not match it.

Without control groups a second filter is added (`build_single_filter`): the program stays one
process, whose memory an rlimit can bound, and cannot make memory that belongs to no process.
"""

import errno
import platform
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
X32 = 0x40000000
"""First number of x86_64's x32 variant, which has the same calls under other numbers."""

DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysctl": (156, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Each call's number on x86_64 and on aarch64; None where it does not exist."""
CLONE = (56, 220)
CLONE3 = 435
CLONE_THREAD = 0x10000
FCNTL = (72, 25)
FCNTL_COMMANDS = (6, 7, 37, 38, 1031)
"""Locks of parts of files, and the size of a pipe: kernel memory without a limit."""
FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}
UNBOUNDED: dict[str, tuple[int | None, int | None]] = {
    "fsetxattr": (190, 7),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "semget": (64, 190),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "setsockopt": (54, 208),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "vmsplice": (278, 75),
}
"""Calls that hold memory which no limit of a process counts."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 4, 16, 24
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the filter for an architecture (default: this machine's); None if unsupported."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [_step(_AT_LEAST, X32, 0, 1), _step(_RETURN, _FAIL | errno.EPERM)]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            program += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _FAIL | errno.EPERM)]
    program += [
        _step(_EQUAL, CLONE3, 0, 1),
        _step(_RETURN, _FAIL | errno.ENOSYS),
        _step(_EQUAL, CLONE[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
        _step(_RETURN, _FAIL | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def build_single_filter(machine: str | None = None) -> bytes | None:
    """Return the filter that keeps a program one process; None if unsupported.

    It is added to the first filter, which has checked the architecture. A fork fails as it does at
    the limit of processes; threads stay possible.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    program = [_step(_LOAD, _NUMBER_AT)]
    for calls, code in ((UNBOUNDED, errno.EPERM), (FORKS, errno.EAGAIN)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                program += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _FAIL | code)]
    program += [
        _step(_EQUAL, CLONE[column], 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_ANY_BIT, CLONE_THREAD, 1, 0),
        _step(_RETURN, _FAIL | errno.EAGAIN),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, FCNTL[column], 0, 1 + 2 * len(FCNTL_COMMANDS)),
        _step(_LOAD, _SECOND_ARGUMENT_AT),
    ]
    for command in FCNTL_COMMANDS:
        program += [_step(_EQUAL, command, 0, 1), _step(_RETURN, _FAIL | errno.EPERM)]
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _step(code: int, value: int, then_skip: int = 0, else_skip: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then_skip, else_skip, value)
