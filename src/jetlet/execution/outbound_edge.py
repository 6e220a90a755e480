"""OutboundEdge: the producing end of an edge; one class per routing policy.

``put`` takes a batch for good and hands as much of it to the queues as they accept. What is left is
remembered per queue, so that nothing is routed or sent twice, and ``flush`` goes on with it. The
caller puts nothing more before ``flush`` has returned ``True``: that is how a full queue
back-pressures its producer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from jetlet.core.items import LatencyMarker, SpecialItem
from jetlet.core.partitioning import Partitioner
from jetlet.errors import ItemFailedError


class Target(Protocol):
    """Where an edge delivers: a queue to a processor of this member, or to a sender."""

    @property
    def is_closed(self) -> bool: ...

    def __len__(self) -> int: ...

    def offer(self, batch: Sequence[Any], start: int = 0) -> int: ...

    def offer_special(self, item: SpecialItem) -> bool: ...


class OutboundEdge(ABC):
    """The output of one processor over one edge. Used by the producer's thread."""

    __slots__ = ("_marked", "_pending", "emitted", "has_moved", "targets")

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self.has_moved = False
        """True if the last flush got anything out."""
        self._marked = -1
        """Who got the last latency marker."""
        self.emitted = 0
        """Items of the user that went out over this edge so far."""
        self._pending: list[tuple[int, Any, int]] = []
        """(target, batch or special item, position in the batch); for each what is still to go."""

    def put(self, batch: Sequence[Any]) -> bool:
        """Take a batch, not empty; true if all of it went out at once."""
        self.emitted += len(batch)
        self._route(batch)
        return not self._pending

    @abstractmethod
    def _route(self, batch: Sequence[Any]) -> None:
        """Send the batch, or parts of it, with :meth:`_send`."""

    def put_special(self, item: SpecialItem) -> bool:
        """Take a watermark, barrier or the done item, which goes to every target.

        A latency marker goes to any one of them, or there would be ever more.
        """
        if item.__class__ is LatencyMarker:
            index = self._marked = (self._marked + 1) % len(self.targets)
            if not self.targets[index].offer_special(item):
                self._pending.append((index, item, 0))
            return not self._pending
        for index, target in enumerate(self.targets):
            if not target.offer_special(item):
                self._pending.append((index, item, 0))
        return not self._pending

    def _send(self, index: int, batch: Sequence[Any]) -> None:
        accepted = self.targets[index].offer(batch)
        if accepted < len(batch):
            self._pending.append((index, batch, accepted))

    def flush(self) -> bool:
        """Go on with what is left; true if nothing is left any more."""
        self.has_moved = False
        if self._pending:
            before = self._pending
            self._pending = []
            for index, load, start in before:
                self._resume(index, load, start)
        return not self._pending

    def _resume(self, index: int, load: Any, start: int) -> None:
        target = self.targets[index]
        if isinstance(load, SpecialItem):
            if target.offer_special(load):
                self.has_moved = True
            else:
                self._pending.append((index, load, 0))
            return
        accepted = target.offer(load, start)
        if accepted:
            self.has_moved = True
            start += accepted
        if start < len(load):
            self._pending.append((index, load, start))

    @property
    def sampled(self) -> Sequence[int]:
        """By partition of the keys: how many of a sample of the items it has; empty without."""
        return ()

    @property
    def is_unwanted(self) -> bool:
        """True if none of those it leads to wants any more items."""
        for target in self.targets:  # mostly the first one says no: all() would take longer
            if not target.is_closed:
                return False
        return bool(self.targets)

    @property
    def is_clear(self) -> bool:
        """True if nothing waits to be flushed."""
        return not self._pending


class SingleTargetEdge(OutboundEdge):
    """One consumer gets everything, whatever the policy."""

    __slots__ = ("_partitioner",)

    def __init__(self, target: Target, partitioner: Partitioner | None = None) -> None:
        super().__init__((target,))
        # Routing needs no key here, but a key that would be refused elsewhere is refused here too.
        self._partitioner = partitioner

    def _route(self, batch: Sequence[Any]) -> None:
        if self._partitioner is not None:
            _check(self._partitioner, batch)
        accepted = self.targets[0].offer(batch)
        if accepted < len(batch):
            self._pending.append((0, batch, accepted))

    @property
    def sampled(self) -> Sequence[int]:
        return () if self._partitioner is None else self._partitioner.sampled


class UnicastEdge(OutboundEdge):
    """Spreads a batch over all consumers; what a full queue refuses goes to the next one."""

    __slots__ = ("_next",)

    def __init__(self, targets: Sequence[Target]) -> None:
        super().__init__(targets)
        self._next = 0

    def _route(self, batch: Sequence[Any]) -> None:
        size = -(-len(batch) // len(self.targets))
        for start in range(0, len(batch), size):
            self._send_anywhere(batch[start : start + size], 0)

    def _send_anywhere(self, batch: Sequence[Any], start: int) -> None:
        for _ in self.targets:
            index = self._next
            self._next = (index + 1) % len(self.targets)
            accepted = self.targets[index].offer(batch, start)
            if accepted:
                self.has_moved = True
                start += accepted
                if start == len(batch):
                    return
        self._pending.append((self._next, batch, start))

    def _resume(self, index: int, load: Any, start: int) -> None:
        if isinstance(load, SpecialItem):
            super()._resume(index, load, start)
        else:
            self._send_anywhere(load, start)


class NearEdge(OutboundEdge):
    """Spreads batches over the consumers on this member that are ``near`` the producer.

    Where threads run at the same time, an item that is used by another one than made it costs more
    than what is done to it. So each producer has consumers of its own, which mostly share its
    thread. Those whose producers have nothing to send at the moment are everybody's.

    What a full queue refuses is offered to it a few times before it goes to who has nothing. If it
    went elsewhere at once, a consumer on the producer's thread would get most: it has emptied its
    queue whenever the producer is called, while others only just have woken up. Who still has no
    room then is passed over until it has.
    """

    __slots__ = (
        "_near",
        "_next",
        "_partitioner",
        "_peers",
        "_reached",
        "_refusals",
        "_seen",
        "_until_look",
    )

    LOOK_AFTER = 16
    """Batches after which a producer looks which of the others have sent nothing meanwhile."""
    PATIENCE = 4
    """Refusals in a row after which a consumer has no room for long."""

    def __init__(
        self,
        targets: Sequence[Target],
        near: Sequence[int],
        peers: list[NearEdge],
        partitioner: Partitioner | None = None,
    ) -> None:
        """``peers`` has the edges of all producers, and gets this one; their threads read it."""
        super().__init__(targets)
        # Routing needs no key here, but a key that would be refused elsewhere is refused here too.
        self._partitioner = partitioner
        self._near = tuple(near)
        self._reached = self._near
        """The targets that get items at the moment."""
        self._next = 0
        self._peers = peers
        self._seen: dict[NearEdge, int] = {}
        """What the others had sent at the last look."""
        self._until_look = 0
        self._refusals = [0] * len(self.targets)
        """How often each has refused everything since it last took something."""
        peers.append(self)

    def _route(self, batch: Sequence[Any]) -> None:
        if self._partitioner is not None:
            _check(self._partitioner, batch)
        self._until_look -= 1
        if self._until_look < 0:
            self._look()
        reached = self._reached
        if len(reached) == 1:
            self._send(reached[0], batch)
            return
        size = -(-len(batch) // len(reached))
        for start in range(0, len(batch), size):
            index = reached[self._next % len(reached)]
            self._next += 1
            self._send(index, batch[start : start + size])

    def _look(self) -> None:
        self._until_look = self.LOOK_AFTER
        reached = set(self._near)
        for peer in self._peers:
            emitted = peer.emitted
            if peer is not self and self._seen.get(peer, 0) == emitted:
                reached.update(peer._near)
            self._seen[peer] = emitted
        self._reached = tuple(sorted(reached))

    def _send(self, index: int, batch: Sequence[Any]) -> None:
        self._offer(index, batch, 0)

    def _resume(self, index: int, load: Any, start: int) -> None:
        if isinstance(load, SpecialItem):
            super()._resume(index, load, start)
        else:
            self._offer(index, load, start)

    def _offer(self, index: int, batch: Sequence[Any], start: int) -> None:
        accepted = self.targets[index].offer(batch, start)
        if not accepted:
            self._refusals[index] += 1
            if self._refusals[index] > self.PATIENCE:
                index = next((i for i, t in enumerate(self.targets) if not len(t)), index)
                accepted = self.targets[index].offer(batch, start)
        if accepted:
            self._refusals[index] = 0
            self.has_moved = True
        if start + accepted < len(batch):
            self._pending.append((index, batch, start + accepted))


class PartitionedEdge(OutboundEdge):
    """Each item goes to the consumer that owns the partition of its key."""

    __slots__ = ("_owners", "_partitioner")

    def __init__(
        self, targets: Sequence[Target], partitioner: Partitioner, owners: Sequence[int]
    ) -> None:
        super().__init__(targets)
        self._partitioner = partitioner
        self._owners = owners

    def _route(self, batch: Sequence[Any]) -> None:
        try:
            shares = self._partitioner.route(batch, self._owners, len(self.targets))
        except Exception as error:
            raise _key_failed(self._partitioner, batch) from error
        for index, share in enumerate(shares):
            if share:
                self._send(index, share)

    @property
    def sampled(self) -> Sequence[int]:
        return self._partitioner.sampled


class BroadcastEdge(OutboundEdge):
    """Every consumer gets every item."""

    __slots__ = ()

    def _route(self, batch: Sequence[Any]) -> None:
        for index in range(len(self.targets)):
            self._send(index, batch)


def _check(partitioner: Partitioner, batch: Sequence[Any]) -> None:
    try:
        partitioner.check(batch)
    except Exception as error:
        raise _key_failed(partitioner, batch) from error


def _key_failed(partitioner: Partitioner, batch: Sequence[Any]) -> ItemFailedError:
    return ItemFailedError(partitioner.failed_item(batch), partitioner.name)


class FanoutEdge(OutboundEdge):
    """Any one consumer on this member, and one on each other member, get every item."""

    __slots__ = ("_local", "_next")

    def __init__(self, local: Sequence[Target], remote: Sequence[Target]) -> None:
        super().__init__((*local, *remote))
        self._local = len(local)
        self._next = 0

    def _route(self, batch: Sequence[Any]) -> None:
        if self._local:
            self._send(self._next, batch)
            self._next = (self._next + 1) % self._local
        for index in range(self._local, len(self.targets)):
            self._send(index, batch)
