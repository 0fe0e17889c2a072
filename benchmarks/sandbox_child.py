"""The inside of the sandbox (see sandbox.py): limits first, then the program and its test. It imports nothing of the package.

    python -I -S sandbox_child.py FD    # the job as JSON on standard input; the result goes to file descriptor FD
"""

import ctypes
import json
import os
import platform
import resource
import sys

# Numbers of the refused system calls, (x86-64, ARM64); None where an architecture has no such call.
REFUSED = {
    # processes and threads
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "execve": (59, 221), "execveat": (322, 281),
    # network and other channels
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "io_uring_setup": (425, 425), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    # other processes
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    # limits and privileges
    "setrlimit": (160, 164), "prlimit64": (302, 261), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "reboot": (169, 142), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "sethostname": (170, 161), "swapon": (167, 224), "swapoff": (168, 225), "add_key": (248, 217), "keyctl": (250, 219),
    # the file system
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "truncate": (76, 45), "ftruncate": (77, 46), "mkdir": (83, None),
    "mkdirat": (258, 34), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mknod": (133, None), "mknodat": (259, 33), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "pivot_root": (155, 41), "chroot": (161, 51), "fallocate": (285, 47),
    "open_by_handle_at": (304, 265),
}  # fmt: skip
# Their arguments lie in memory, where a filter cannot look: "no such call" makes libraries use the older ones.
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
# Position of the flags among the arguments.
OPENING = {"open": (2, None, 1), "openat": (257, 56, 2)}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# AUDIT_ARCH_* of <linux/audit.h>, and the column above.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
X32_CALLS = 0x40000000

# <linux/filter.h>, <linux/seccomp.h>, <linux/prctl.h>
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
# Offsets into struct seccomp_data; the low half of a 64-bit argument comes first on both architectures.
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16


class Instruction(ctypes.Structure):
    """struct sock_filter"""

    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction))]


def filter_instructions(machine):
    """The filter as (code, jump if true, jump if false, operand) tuples."""
    architecture, column = MACHINES[machine]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        lines += [(AT_LEAST, 0, 1, X32_CALLS), (RETURN, 0, 0, EPERM)]
    for calls, answer in ((REFUSED, EPERM), (ABSENT, ENOSYS)):
        for numbers in calls.values():
            if numbers[column] is not None:
                lines += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, answer)]
    for *numbers, position in OPENING.values():
        if numbers[column] is not None:
            flags = ARGUMENTS + 8 * position
            lines += [(EQUAL, 0, 4, numbers[column]), (LOAD, 0, 0, flags), (ANY_BIT, 0, 1, WRITING)]
            lines += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    return [*lines, (RETURN, 0, 0, ALLOW)]


def apply_filter():
    lines = [Instruction(*line) for line in filter_instructions(platform.machine())]
    program = Program(len(lines), (Instruction * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def limit(job):
    def at_most(name, value):
        kind = getattr(resource, name, None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))

    at_most("RLIMIT_CORE", 0)
    at_most("RLIMIT_FSIZE", 0)
    at_most("RLIMIT_NPROC", 0)
    at_most("RLIMIT_CPU", job["cpu_s"])
    at_most("RLIMIT_AS", job["memory_bytes"])


def main():
    result = int(sys.argv[1])
    job = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    limit(job)
    if job["filter"]:
        apply_filter()
    try:
        names = {"__name__": "answer"}
        exec(compile(job["program"], "answer", "exec"), names)
        exec(compile(job["test"], "test", "exec"), names)
        names["check"](names[job["entry_point"]])
        reply = {"token": job["token"]}
    except BaseException as error:
        reply = {"error": f"{type(error).__name__}: {error}"[:200].splitlines()[0]}
    os.write(result, json.dumps(reply).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
