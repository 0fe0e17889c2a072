"""The environment set-up's stamps: what is not complete and current is not used."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_env.py"


@pytest.fixture
def setup_env():
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_right_stamp_counts(setup_env, tmp_path):
    setup_env.new_venv(tmp_path)
    assert not setup_env.is_complete(tmp_path, "a")
    setup_env.finish(tmp_path, "a")
    assert setup_env.is_complete(tmp_path, "a")
    assert not setup_env.is_complete(tmp_path, "b")
    # The interpreter that the environment was made from is gone.
    (tmp_path / "bin" / "python").unlink()
    assert not setup_env.is_complete(tmp_path, "a")


def test_a_new_environment_starts_empty(setup_env, tmp_path):
    (tmp_path / "left").write_text("by a build that was cut short")
    setup_env.new_venv(tmp_path)
    assert not (tmp_path / "left").exists()
    assert list(Path(setup_env.site_packages(tmp_path)).iterdir()) == []


def test_the_key_separates_its_parts(setup_env):
    assert setup_env.digest("ab", "c") != setup_env.digest("a", "bc")
    assert setup_env.digest("ab", b"c") == setup_env.digest(b"ab", "c")


def test_a_second_setup_waits_for_the_first(setup_env, tmp_path):
    hold = (
        "import sys, time, importlib.util as u; s = u.spec_from_file_location('s', sys.argv[1]); m = u.module_from_spec(s); "
        "s.loader.exec_module(m); from pathlib import Path\n"
        "with m.locked(Path(sys.argv[2])): print('held', flush=True); time.sleep(0.5); Path(sys.argv[2] + '.done').touch()"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(SCRIPT), str(tmp_path / "l")], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with setup_env.locked(tmp_path / "l"):
            assert (tmp_path / "l.done").exists()


def test_a_failing_pip_shows_the_end_of_its_output(setup_env, tmp_path, capsys):
    failing = [sys.executable, "-c", "print('Collecting x'); print('ERROR: no such version'); raise SystemExit(1)"]
    with pytest.raises(subprocess.CalledProcessError):
        setup_env.run_with_progress(failing, tmp_path / "log", 1)
    assert "ERROR: no such version" in capsys.readouterr().out


def test_the_lock_pins_everything_and_names_no_place():
    lines = (SCRIPT.parents[1] / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    assert not any(word in line for line in lines for word in ("://", "@ ", "--index", "--find-links"))
    assert {"sglang==0.5.23", "torch==2.14.1"} <= set(pins)


def test_a_launcher_calls_its_function_with_the_arguments_and_exits_with_its_result(setup_env, tmp_path):
    setup_env.new_venv(tmp_path)
    module = Path(setup_env.site_packages(tmp_path)) / "commands.py"
    module.write_text("import sys\ndef main():\n    print(sys.prefix, sys.argv[1:])\n    return 3\n")
    command = tmp_path / "bin" / "command"
    command.write_text(setup_env.launcher(tmp_path, "commands", "main"))
    command.chmod(0o755)
    done = subprocess.run([command, "a b", "--c"], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == f"{tmp_path} ['a b', '--c']\n"
