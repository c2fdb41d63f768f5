"""Attacks that reach for other processes, for rights and for the kernel."""

from studies.attacks.attack import quick

POWERS = quick(
    "powers",
    kill_others="""
for pid in (1, os.getppid(), HOST_PID, -1):
    if pid != os.getpid(): attempt(pid, os.kill, pid, signal.SIGKILL)
for number in range(1, 65): attempt(number, os.kill, 1, number)
attempt("group", os.killpg, 1, signal.SIGKILL)
print("alive")
""",
    trace_others="""
number = {"x86_64": 101, "aarch64": 117}[os.uname().machine]
for pid in (1, os.getppid(), HOST_PID):
    if libc.syscall(number, 16, pid, 0, 0) == 0: escaped("ptrace")
    word = ctypes.create_string_buffer(8)
    Vector = ctypes.c_size_t * 2
    mine = Vector(ctypes.addressof(word), 8); theirs = Vector(0x400000, 8)
    number_vm = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
    if libc.syscall(number_vm, pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0:
        escaped("process_vm_readv")
def poke():
    with open(f"/proc/{HOST_PID}/mem", "r+b"): escaped("memory")
attempt("mem", poke)
""",
    mount_things="""
for kind, at in (("tmpfs", "/tmp"), ("proc", "/proc"), ("sysfs", "/tmp"), ("cgroup2", "/tmp"),
                 ("overlay", "/tmp"), ("devtmpfs", "/tmp")):
    if libc.mount(b"x", at.encode(), kind.encode(), 0, None) == 0: escaped(kind)
if libc.mount(b"/", b"/tmp", None, 4096, None) == 0: escaped("bind")
if libc.umount2(b"/tmp", 2) == 0: escaped("umount")
if libc.mount(None, b"/", None, 32, None) == 0: escaped("remount")
attempt("chroot", lambda: (os.chroot("/tmp"), escaped("chroot")))
""",
    new_namespaces="""
for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x04000000, 0x08000000, 0x02000000):
    if libc.unshare(flag) == 0: escaped(hex(flag))
    if libc.unshare(flag | 0x10000000) == 0: escaped(hex(flag))
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
if libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0) >= 0: escaped("clone")
if libc.syscall(435, ctypes.create_string_buffer(88), 88) >= 0: escaped("clone3")
for path in glob.glob("/proc/1/ns/*"):
    def enter():
        fd = os.open(path, os.O_RDONLY)
        if libc.setns(fd, 0) == 0: escaped(path)
    attempt(path, enter)
""",
    become_root="""
for call in (os.setuid, os.seteuid, os.setgid, os.setegid):
    attempt(call.__name__, lambda: (call(0), escaped(call.__name__)))
attempt("groups", lambda: (os.setgroups([0]), escaped("setgroups")))
attempt("copy", lambda: open("su", "wb").write(open("/bin/sh", "rb").read()))
attempt("setuid", os.chmod, "su", 0o6755)
if os.path.exists("su"): print(subprocess.run(["./su", "-p", "-c", "id -u"], capture_output=True))
for name in ("su", "mount", "passwd", "newgrp", "chsh"):
    attempt(name, lambda: print(subprocess.run([name], stdin=subprocess.DEVNULL,
                                               capture_output=True, timeout=2).returncode))
attempt("chown", lambda: (os.chown("su", 0, 0), escaped("chown")))
attempt("device", lambda: (os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)),
                           escaped("mknod")))
status = open("/proc/self/status").read()
for line in status.splitlines():
    if line.startswith(("CapPrm", "CapEff", "CapAmb")) and int(line.split()[1], 16): escaped(line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1": escaped(line)
    if line.startswith("Seccomp:") and line.split()[1] != "2": escaped(line)
""",
    touch_kernel="""
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
             "/proc/sys/kernel/hostname", "/proc/self/uid_map",
             "/proc/sys/kernel/modprobe"):
    def write():
        with open(path, "w") as file: file.write("0")
        escaped(path)
    attempt(path, write)
for pid in ("self", "1"):
    def spare():
        with open(f"/proc/{pid}/oom_score_adj", "w") as file: file.write("-1000")
        escaped("oom")
    attempt(pid, spare)
numbers = {"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
           "kexec_load": 246, "init_module": 175, "reboot": 169, "settimeofday": 164,
           "sethostname": 170, "iopl": 172, "personality": 135, "syslog": 103}
if os.uname().machine == "x86_64":
    for name, number in numbers.items():
        if libc.syscall(number, 0, 0, 0, 0, 0) >= 0: escaped(name)
attempt("nice", lambda: (os.nice(-20), os.nice(0) < 0 and escaped("nice")))
attempt("realtime", lambda: (os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
                             escaped("realtime")))
""",
)
