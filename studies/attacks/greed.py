"""Attacks that use up resources, or keep running after their time limit."""

from studies.attacks.attack import greedy, quick

GREED = greedy(
    "greed",
    fork_bomb="""
while True:
    try: os.fork()
    except OSError: pass
""",
    thread_bomb="""
while True:
    try: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    except RuntimeError: pass
""",
    memory_bomb="kept = []\nwhile True: kept.append(bytearray(2**20))\n",
    shared_memory_bomb="""
kept = []
for _ in range(8):
    try: os.fork()
    except OSError: pass
while True:
    block = mmap.mmap(-1, 2**20); block.write(b"x" * 2**20); kept.append(block)
""",
    memory_file_bomb="""
while True: os.write(os.memfd_create("x"), bytes(2**20))
""",
    huge_output="""
block = b"x" * 65536
while True: os.write(1, block); os.write(2, block)
""",
    huge_output_of_many="""
for _ in range(3): os.fork()
while True: os.write(1, b"y" * 4096)
""",
    fill_disk="""
with open("big", "wb", buffering=0) as file:
    while True: file.write(bytes(2**16))
""",
    many_files="""
number = 0
while True:
    os.makedirs(f"{number % 97}", exist_ok=True); open(f"{number % 97}/{number}", "wb").close()
    number += 1
""",
    fill_every_place="""
while True:
    for folder in ("/tmp", "/dev/shm", ".", "/", "/dev", "/run", "/var/tmp"):
        try:
            with open(f"{folder}/{time.time()}", "wb") as file: file.write(bytes(2**18))
        except OSError: pass
""",
    spin="while True: pass\n",
    spin_together="""
for _ in range(3): os.fork()
while True: pass
""",
    never_end="""
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1000)
""",
    exhaust_descriptors="""
kept = []
while True:
    try: kept.append(os.pipe())
    except OSError: time.sleep(0.001)
""",
)

DAEMONS = quick(
    "daemons",
    stay_behind="""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        while True: time.sleep(1)
    os._exit(0)
print("left one")
""",
    stay_and_shout="""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: os.write(1, b"z" * 4096)
    os._exit(0)
""",
    stay_and_multiply="""
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork() == 0: os.setsid()
            except OSError: time.sleep(0.01)
""",
)
