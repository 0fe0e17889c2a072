"""The process that runs sglang.bench_serving without importing it anew: real, but without a server to load."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from nsd_sglang.benchmarks.errors import BenchError
from nsd_sglang.benchmarks.load import LoadMaker
from nsd_sglang.demo.cache import DemoError

ALIVE = SimpleNamespace(check_alive=lambda within_s=0.0: None)


def test_it_runs_bench_serving_several_times_and_tells_its_failures(tmp_path):
    with LoadMaker(tmp_path / "maker.log") as maker:
        maker.run(["--help"], tmp_path / "help.log", ALIVE)
        first = maker._guard.pid
        assert "Benchmark the online serving throughput." in (tmp_path / "help.log").read_text()
        with pytest.raises(BenchError, match="ended with exit code 2") as told:
            maker.run(["--num-prompts", "many"], tmp_path / "bad.log", ALIVE)
        assert "invalid int value: 'many'" in str(told.value) and str(tmp_path / "bad.log") in str(told.value)
        # The one before has left nothing behind: no arguments, no exit code, no output.
        maker.run(["--help"], tmp_path / "again.log", ALIVE)
        assert (tmp_path / "again.log").read_text() == (tmp_path / "help.log").read_text()
        assert maker._guard.pid == first


def test_it_stops_when_the_server_has_ended(tmp_path):
    def ended(within_s=0.0):
        raise DemoError("the server ended")

    client = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); time.sleep(600)"
    with LoadMaker(tmp_path / "log", program=[sys.executable, "-c", client]) as maker:
        with pytest.raises(DemoError, match="the server ended"):
            maker.run([], tmp_path / "x", SimpleNamespace(check_alive=ended))
        assert maker._guard is None


@pytest.mark.parametrize(
    "client", ["import sys; sys.exit('no sglang here')", "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.exit('no sglang here')"]
)
def test_a_load_maker_that_ends_is_told_with_its_log(tmp_path, client):
    with LoadMaker(tmp_path / "log", program=[sys.executable, "-c", client]) as maker:
        with pytest.raises(BenchError, match="the load maker .*") as told:
            maker.run([], tmp_path / "x", ALIVE)
    assert str(tmp_path / "log") in str(told.value)
    assert isinstance(maker._guard, (type(None), subprocess.Popen))
