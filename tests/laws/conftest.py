"""How long the laws are tested: `ETT_LAWS=5000 pytest tests/laws` for more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
MANY = int(os.environ.get("ETT_LAWS", "0"))
settings.register_profile(
    "laws",
    max_examples=MANY or 100,
    derandomize=not MANY,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("laws")
