"""SGLang's forward-pass timer with intervals by the clock."""

import time

from sglang.srt.utils import device_timer

from nsd_sglang.patches import cpu_timer
from nsd_sglang.platforms.install import install


def test_sglangs_timer_reports_every_pass(monkeypatch):
    monkeypatch.setattr(device_timer, "_TimingInterval", device_timer._TimingInterval)
    install(*cpu_timer.ASSIGNMENTS)
    reported = []
    timer = device_timer.DeviceTimer(reporter=lambda **words: reported.append(words))
    for category in ("target_verify", "extend"):
        with device_timer.device_timer_ctx(timer, category):
            assert timer.is_active()
            time.sleep(0.02)
        assert not timer.is_active()
    assert [words["category"] for words in reported] == ["target_verify", "extend"]
    assert all(0.02 <= words["t"] < 0.5 for words in reported)
