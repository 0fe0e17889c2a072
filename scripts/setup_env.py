"""Set up the environment of this checkout: ``python3 scripts/setup_env.py`` (Python 3.11 or newer, standard library only).

Two layers, so that a second clone costs seconds and clones never disturb each other:

1. One virtual environment per lock file and interpreter, shared by every clone of a user:
   ``$XDG_CACHE_HOME/nsd-sglang/env-<hash>``, installed from ``requirements.lock`` without resolving anything.
2. ``.venv`` in the checkout, which sees the first one's packages and holds this package as an editable install.

Both carry a stamp that is written last. Without the right stamp a layer is removed and built again, so an interrupted
build is never used. A file lock makes concurrent set-ups wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
STAMP = "nsd-sglang.stamp"
MIN_PYTHON = (3, 11)
# sglang's own closure unpacks to 11 GB, nearly all of it CUDA libraries; pip needs room for the downloads as well.
DISK_GB = 16


def say(text: str) -> None:
    print(f"[env] {text}", flush=True)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "nsd-sglang"


def digest(*parts: str | bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path):
    """Hold an exclusive file lock; the kernel releases it however this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is at work on the same environment; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_complete(env: Path, key: str) -> bool:
    try:
        return (env / STAMP).read_text().strip() == key and (env / "bin" / "python").exists()
    except OSError:
        return False


def new_venv(env: Path) -> None:
    """Create an empty virtual environment, without pip and whatever this Python would put beside it."""
    shutil.rmtree(env, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)


def new_venv_with_pip(env: Path) -> list[str]:
    """Create the virtual environment ``env`` and return the command that runs pip for it.

    Debian ships Python without ensurepip; there the interpreter's own pip installs into the environment.
    """
    shutil.rmtree(env, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(env)], capture_output=True, text=True)
    if made.returncode == 0:
        return [str(env / "bin" / "python"), "-m", "pip"]
    outer = [sys.executable, "-m", "pip"]
    if subprocess.run([*outer, "--version"], capture_output=True).returncode != 0:
        sys.exit(f"[env] {sys.executable} has neither ensurepip nor pip; install your system's python3-venv package")
    new_venv(env)
    return [*outer, "--python", str(env / "bin" / "python")]


def site_packages(env: Path) -> str:
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.check_output([str(env / "bin" / "python"), "-c", ask], text=True).strip()


def finish(env: Path, key: str) -> None:
    fresh = env / (STAMP + ".new")
    fresh.write_text(key + "\n")
    fresh.rename(env / STAMP)


def run_with_progress(command: list[str], log: Path, packages: int) -> None:
    """Run pip with its output in ``log``, and tell how far it is; raises CalledProcessError after showing the log's end."""
    begin = time.monotonic()
    next_s = 0.0
    with open(log, "w") as out:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        while pip.poll() is None:
            time.sleep(0.5)
            lines = log.read_text(errors="replace").splitlines()
            found = sum(line.startswith("Collecting ") for line in lines)
            unpacking = any(line.startswith("Installing collected") for line in lines)
            step = f"unpacking {packages} packages" if unpacking else f"downloading package {found} of {packages}"
            elapsed = time.monotonic() - begin
            if sys.stdout.isatty():
                print(f"\r[env] {elapsed:4.0f} s  {step:<40}", end="", flush=True)
            elif elapsed >= next_s:
                next_s += 15.0
                say(f"{elapsed:4.0f} s  {step}")
    finally:
        pip.terminate()
        pip.wait()
        if sys.stdout.isatty():
            print(flush=True)
    if pip.returncode != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), flush=True)
        say(f"pip's whole output: {log}")
        raise subprocess.CalledProcessError(pip.returncode, command)


def build_shared() -> tuple[Path, str]:
    key = digest(LOCK.read_bytes(), sys.version, os.path.realpath(sys.executable), platform.machine())
    env = cache_dir() / f"env-{key}"
    with locked(cache_dir() / f"env-{key}.lock"):
        if is_complete(env, key):
            return env, key
        free = shutil.disk_usage(cache_dir()).free / 1e9
        if free < DISK_GB:
            sys.exit(f"[env] {cache_dir()} has {free:.0f} GB free; {DISK_GB} are needed (or set XDG_CACHE_HOME elsewhere)")
        packages = sum(line[:1].isalnum() for line in LOCK.read_text().splitlines())
        say(f"installing {packages} pinned packages into {env} (once per lock file; a few minutes, 11 GB)")
        begin = time.monotonic()
        pip = new_venv_with_pip(env)
        install = [*pip, "install", "--disable-pip-version-check", "--progress-bar", "off", "--no-deps", "-r", str(LOCK)]
        run_with_progress(install, cache_dir() / f"env-{key}.log", packages)
        finish(env, key)
        say(f"packages installed in {time.monotonic() - begin:.0f} s")
    return env, key


def launcher(env: Path, module: str, function: str) -> str:
    """A command that calls a function with this checkout's interpreter."""
    call = f"import sys; from {module} import {function}; sys.exit({function}())"
    return f'#!/bin/sh\nexec "{env}/bin/python" -c "{call}" "$@"\n'


def build_checkout(shared: Path, shared_key: str) -> Path:
    env = ROOT / ".venv"
    key = digest(shared_key, str(shared), str(ROOT), (ROOT / "pyproject.toml").read_bytes())
    with locked(cache_dir() / f"checkout-{digest(str(ROOT))}.lock"):
        if is_complete(env, key):
            return env
        say(f"installing this checkout into {env}")
        new_venv(env)
        # addsitedir, not a bare path: the shared environment's own .pth files count as well.
        line = f"import site; site.addsitedir({site_packages(shared)!r})\n"
        Path(site_packages(env), "nsd_sglang_shared_env.pth").write_text(line)
        # The shared environment's own commands run its interpreter, which does not see this checkout.
        for name, function in {"sglang": "sglang.cli.main:main", "pytest": "pytest:main"}.items():
            script = env / "bin" / name
            script.write_text(launcher(env, *function.split(":")))
            script.chmod(0o755)
        # pip and the build backend are in the lock, so they come from the shared environment.
        pip = [str(env / "bin" / "python"), "-m", "pip"]
        install = [*pip, "install", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
        done = subprocess.run(install, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print(done.stdout, flush=True)
            raise subprocess.CalledProcessError(done.returncode, install)
        if subprocess.run([*pip, "check", "--disable-pip-version-check"]).returncode != 0:
            say("warning: requirements.lock does not satisfy every declared dependency (listed above)")
        finish(env, key)
    return env


def main() -> int:
    if sys.version_info < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        sys.exit(f"[env] Python {wanted} or newer is needed, this is {platform.python_version()}; try make PYTHON=python{wanted}")
    try:
        shared, key = build_shared()
        env = build_checkout(shared, key)
    except subprocess.CalledProcessError as error:
        sys.exit(f"[env] failed (exit code {error.returncode}): {' '.join(map(str, error.cmd))}")
    except KeyboardInterrupt:
        sys.exit("[env] interrupted; the next run starts this step again")
    say(f"ready: {env}/bin/python")
    return 0


if __name__ == "__main__":
    sys.exit(main())
