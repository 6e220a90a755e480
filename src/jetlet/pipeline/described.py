"""What sources and sinks say of themselves."""

from __future__ import annotations


class Described:
    """Shows itself as the call that made it, such as ``sources.text('books/*.txt')``."""

    call: str = ""
    """The call that made this, as far as it may be shown; empty for classes of users."""

    def __repr__(self) -> str:
        kind = type(self)
        return self.call or f"<{kind.__qualname__} {getattr(self, 'name', 'without a name')}>"
