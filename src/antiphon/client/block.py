"""Blocks: what is opened by `await` or `async with`, and closed where the block ends."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from antiphon.errors import AntiphonError


class Block:
    """What an application opens, uses for a while, and closes."""

    async def _opened(self) -> Self:
        """What awaiting it does."""
        raise NotImplementedError

    async def close(self) -> None:
        """What the end of its block does."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AntiphonError:
            # What went wrong inside says more than that the end went wrong too.
            if kind is None:
                raise
