"""Event loops, for tests that depend on theirs."""

import pytest
from anyio.lowlevel import checkpoint

native = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")],
)


async def turns(count: int) -> None:
    """Let the other tasks of the loop run so many times."""
    for _ in range(count):
        await checkpoint()
