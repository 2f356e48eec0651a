"""Blocks: what is closed where its `with` block ends. It was opened by the call that made it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from antiphon.errors import AntiphonError


class Block:
    """What an application uses for a while, and closes."""

    def close(self) -> None:
        """What the end of its block does."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except AntiphonError:
            # What went wrong inside says more than that the end went wrong too.
            if kind is None:
                raise
