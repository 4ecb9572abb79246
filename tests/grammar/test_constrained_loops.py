"""Constraints on every event loop."""

from __future__ import annotations

import re

import pytest
from small_engine import complete_all, make, params

from callboard import InvalidRequestError


async def test_constrained_requests_are_served_on_every_event_loop(anyio_backend):
    async with make() as engine:
        bad = engine.generate("x", params(regex="("))
        found = await complete_all(engine, {name: (name, params(regex=r"\d{3}-\d{4}")) for name in "abc"})
        assert all(re.fullmatch(r"\d{3}-\d{4}", output.text) for output in found.values())
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            await anext(bad)
        engine.check()
