# ruff: noqa: E501, S106 - the programs are data
"""Attacks on the limit of memory: everything a program can do to hold more than it may."""

from dataclasses import replace

from rollart.types import ProgramLimits
from studies.attacks.attack import greedy

LIMITS = ProgramLimits(
    wall_s=4.0,
    cpu_s=3.0,
    memory_bytes=128 * 2**20,
    processes=16,
    output_bytes=2**16,
    files_bytes=32 * 2**20,
)
"""Room enough that a program which is not stopped holds much more."""

_SYSTEM_V = "libc.shmat.restype = ctypes.c_void_p\nlibc.shmdt.argtypes = [ctypes.c_void_p]\n"
_MAP = (
    "libc.mmap.restype = ctypes.c_void_p\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n"
)

MEMORY = tuple(
    replace(attack, limits=LIMITS)
    for attack in greedy(
        "memory",
        allocate="kept = []\nwhile True: kept.append(bytearray(2**20))\n",
        allocate_in_children="""
for _ in range(6):
    try:
        if os.fork() == 0: break
    except OSError: pass
kept = []
while True:
    try: kept.append(bytearray(2**20))
    except MemoryError: time.sleep(0.1)
""",
        allocate_in_threads="""
def fill():
    kept = []
    while True:
        try: kept.append(bytearray(2**20))
        except MemoryError: time.sleep(0.1)
for _ in range(6):
    try: threading.Thread(target=fill, daemon=True).start()
    except RuntimeError: pass
time.sleep(2)
""",
        allocate_in_programs="""
for _ in range(6):
    try: subprocess.Popen(["python3", "-c", "k = bytearray(120 * 2**20); input()"],
                          stdin=subprocess.PIPE)
    except OSError: pass
time.sleep(2)
""",
        another_program="os.execvp('tail', ['tail', '-c', '2G', '/dev/zero'])",
        shared_mappings="""
kept = []
while True:
    block = mmap.mmap(-1, 2**20); block.write(b"x" * 2**20); kept.append(block)
""",
        system_v_memory=_SYSTEM_V
        + """
for _ in range(480):
    number = libc.shmget(0, 2**20, 0o1600)
    if number < 0: break
    at = libc.shmat(number, None, 0)
    ctypes.memset(at, 1, 2**20); libc.shmdt(at)
time.sleep(0.3)
""",
        system_v_memory_of_children=_SYSTEM_V
        + """
for _ in range(8):
    try:
        if os.fork() == 0:
            for _ in range(60):
                number = libc.shmget(0, 2**20, 0o1600); at = libc.shmat(number, None, 0)
                if number < 0: break
                ctypes.memset(at, 1, 2**20); libc.shmdt(at)
            os._exit(0)
    except OSError: pass
time.sleep(1)
""",
        memory_files="""
kept = []
for _ in range(480):
    try: kept.append(os.memfd_create("x")); os.write(kept[-1], bytes(2**20))
    except OSError: break
time.sleep(0.3)
""",
        secret_memory_files="""
number = 447
for _ in range(100):
    fd = libc.syscall(number, 0)
    if fd < 0: break
    os.ftruncate(fd, 2**20); mmap.mmap(fd, 2**20).write(b"x" * 2**20)
""",
        files="""
number = 0
while True:
    try:
        with open(f"{number}", "wb") as file: file.write(bytes(2**20))
    except OSError: time.sleep(0.01)
    number += 1
""",
        files_and_memory="""
kept = []
try:
    while True: kept.append(bytearray(2**20))
except MemoryError: pass
for number in range(99):
    try: fd = os.open(f"f{number}", os.O_CREAT | os.O_WRONLY); os.write(fd, kept[0]); os.close(fd)
    except OSError: break
time.sleep(0.3)
""",
        shared_memory_directory="""
for number in range(480):
    for folder in ("/dev/shm", "/run", "/var/tmp", "/dev", "/"):
        try:
            with open(f"{folder}/{number}", "wb") as file: file.write(bytes(2**20))
        except OSError: pass
""",
        empty_files="""
number = 0
while True: os.close(os.open(f"{number}", os.O_CREAT | os.O_WRONLY)); number += 1
""",
        long_names_and_links="""
number = 0
while True:
    name = f"{number}" + "x" * 240
    try: os.symlink("y" * 4000, name)
    except OSError: time.sleep(0.001)
    number += 1
""",
        page_tables=_MAP
        + """
at = 2**40
while True:
    at += 2**30
    got = libc.mmap(at, 4096, 3, 0x100022, -1, 0)
    if got in (None, 2**64 - 1): time.sleep(0.01); continue
    ctypes.memset(got, 1, 1)
""",
        locked_memory=_MAP
        + """
libc.mlockall(3)
while True:
    if libc.mmap(None, 2**21, 3, 0x8022, -1, 0) in (None, 2**64 - 1): time.sleep(0.01)
""",
        pipes="""
import fcntl
kept = []
try:
    while True:
        read, write = os.pipe(); kept += [read, write]; os.set_blocking(write, False)
        try: fcntl.fcntl(write, 1031, 2**20)
        except OSError: pass
        try:
            while True: os.write(write, bytes(65536))
        except BlockingIOError: pass
except OSError: time.sleep(0.3)
""",
        sockets="""
kept = []
try:
    while True:
        pair = socket.socketpair(); kept += pair
        for each in pair:
            each.setblocking(False)
            try: each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**24)
            except OSError: pass
            try:
                while True: each.send(bytes(65536))
            except BlockingIOError: pass
except OSError: time.sleep(0.3)
""",
        sockets_in_sockets="""
kept = []
outer = socket.socketpair()
try:
    for _ in range(2000):
        left, right = socket.socketpair(); left.setblocking(False)
        try:
            while True: left.send(bytes(65536))
        except BlockingIOError: pass
        socket.send_fds(outer[0], [b"x"], [left.fileno(), right.fileno()]); left.close(); right.close()
except OSError: time.sleep(0.3)
""",
        message_queues="""
for _ in range(30000):
    queue = libc.msgget(0, 0o1600)
    if queue < 0: break
    for _ in range(2): libc.msgsnd(queue, b"\\1" * 8 + bytes(8000), 8000, 0o4000)
""",
        semaphores="""
for _ in range(2000):
    if libc.semget(0, 32000, 0o1600) < 0: break
""",
        pinned_pages=_MAP
        + """
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
kept = []
try:
    while True:
        pipe = os.pipe(); kept.append(pipe); os.set_blocking(pipe[1], False)
        for _ in range(16):
            at = libc.mmap(None, 2**22, 3, 0x22, -1, 0)
            if at in (None, 2**64 - 1): break
            at2 = (at + 2**21 - 1) // 2**21 * 2**21
            libc.madvise(ctypes.c_void_p(at2), ctypes.c_size_t(2**21), 14); ctypes.memset(at2, 1, 2**21)
            libc.vmsplice(pipe[1], ctypes.byref(Vector(at2, 4096)), 1, 2)
            libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(2**22))
except OSError: time.sleep(0.3)
""",
        locks_of_files="""
import fcntl
files = [open(f"{number}", "wb") for number in range(60)]
start = 0
while True:
    for file in files:
        try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
        except OSError: time.sleep(0.001)
    start += 2
""",
        watches="""
fd = libc.inotify_init1(0)
left = 10000
for folder, names, files in os.walk("/usr"):
    for name in files: libc.inotify_add_watch(fd, os.path.join(folder, name).encode(), 0xfff)
    left -= len(files)
    if left < 0: break
""",
        take_over_the_runner="""
for line in open("/proc/1/maps"):
    start, end = (int(each, 16) for each in line.split()[0].split("-"))
    if " rw" in line:
        with open("/proc/1/mem", "r+b") as memory: memory.seek(start); memory.write(b"x")
        escaped("the runner's memory")
""",
    )
)
