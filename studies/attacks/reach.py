"""Attacks that reach for the host's network and files."""

from studies.attacks.attack import quick

NETWORK = quick(
    "network",
    connect_loopback="""
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"),
                     (socket.AF_INET6, "::1")):
    def reach():
        with socket.socket(family) as s:
            s.settimeout(2); s.connect((host, PORT)); escaped("connected")
    attempt(host, reach)
""",
    open_any_socket="""
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        if libc.socket(family, kind, 0) >= 0:
            escaped(f"socket {family} {kind}")
""",
    socket_by_number="""
number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
if libc.syscall(number, 2, 1, 0) >= 0: escaped("socket")
if os.uname().machine == "x86_64" and libc.syscall(0x40000000 | 41, 2, 1, 0) >= 0:
    escaped("socket, x32")
if libc.syscall(425, 8, ctypes.create_string_buffer(512)) >= 0: escaped("io_uring")
""",
    resolve_name="""
def resolve(): print(socket.getaddrinfo("example.com", 80)); escaped("resolved")
attempt("dns", resolve)
def ask():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(bytes(12), ("127.0.0.53", 53)); escaped("sent to a name server")
attempt("udp", ask)
""",
    abstract_socket="""
def reach(address):
    with socket.socket(socket.AF_UNIX) as s: s.connect(address); escaped("connected")
attempt("abstract", reach, "\\0" + ABSTRACT)
attempt("path", reach, UNIX_PATH)
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket"):
    attempt(path, reach, path)
""",
    inherit_descriptors="""
import array
left, right = socket.socketpair()
for fd in range(3, 64):
    try: kind = os.fstat(fd)
    except OSError: continue
    if fd not in (left.fileno(), right.fileno()): print("inherited", fd, kind)
    if stat.S_ISDIR(kind.st_mode): escaped("an inherited directory")
for fd in os.listdir("/proc/self/fd"):
    try: print(fd, os.readlink(f"/proc/self/fd/{fd}"))
    except OSError: pass
""",
)

FILES = quick(
    "files",
    read_the_file="attempt('open', show, SECRET_FILE)\nattempt('dir', os.listdir, FOLDER)",
    read_known_places="""
for path in ("/etc/shadow", "/etc/gshadow", "/etc/ssh", "/root/.ssh/id_rsa", "/root/.bashrc",
             "/home", "/work", "/var", "/run", "/sys", "/boot", "/mnt", "/srv", "/proc/kcore",
             "/proc/kmsg", "/dev/mem", "/dev/vda", "/dev/sda"):
    def look():
        if os.path.isdir(path):
            print(os.listdir(path)); escaped(path)
        else:
            show(path); escaped(path)
    attempt(path, look)
""",
    read_environment="""
print(dict(os.environ)); show("/proc/self/environ") if os.access("/proc/self/environ", 4) else 0
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    attempt(path, show, path)
if VARIABLE in os.environ: escaped("variable")
""",
    through_proc="""
for process in glob.glob("/proc/[0-9]*") + ["/proc/self", "/proc/thread-self", f"/proc/{HOST_PID}"]:
    for way in ("root", "cwd"):
        attempt(way, show, f"{process}/{way}{SECRET_FILE}")
    def look():
        for fd in os.listdir(process + "/fd"):
            attempt(fd, show, f"{process}/fd/{fd}/../../{SECRET_FILE}")
    attempt(process, look)
""",
    symlink_out="""
os.symlink(SECRET_FILE, "link"); attempt("link", show, "link")
os.symlink("/", "top"); attempt("top", show, "top" + SECRET_FILE)
attempt("hard", os.link, SECRET_FILE, "hard"); attempt("hard", show, "hard")
attempt("up", show, "../" * 20 + SECRET_FILE)
os.symlink("/proc/1/root", "first"); attempt("first", show, "first" + SECRET_FILE)
""",
    search_everything="""
name = os.path.basename(SECRET_FILE)
seen = 0
for top in ("/tmp", "/etc", "/dev", "/opt", "/root", "/var", "/run", "/home", "/srv"):
    for folder, _, files in os.walk(top):
        if "/lib/python3" in folder: continue
        if name in files: show(os.path.join(folder, name)); escaped(folder)
        seen += len(files)
print("looked at", seen)
""",
    write_outside="""
for path in ("/x", "/usr/x", "/etc/x", "/etc/passwd", "/opt/x", "/runner.py", "/dev/x",
             "/bin/x", "/root/x", sys.executable, os.__file__, FOLDER + "/x", SECRET_FILE):
    def write():
        with open(path, "ab") as file: file.write(b"x")
        escaped(path)
    attempt(path, write)
attempt("mkdir", lambda: (os.makedirs("/var/x"), escaped("/var")))
""",
    file_handles="""
root_of_the_disk = bytes([8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
handle = ctypes.create_string_buffer(root_of_the_disk + bytes(128))
number = {"x86_64": 304, "aarch64": 265}[os.uname().machine]
for path in ("/usr", "/tmp", "/", os.path.dirname(sys.executable)):
    fd = os.open(path, os.O_RDONLY)
    if libc.syscall(number, fd, handle, os.O_RDONLY) >= 0: escaped(path)
""",
)
