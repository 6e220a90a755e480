"""OutboundEdge: every routing policy delivers each item where it belongs, once, in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.core import DONE, Watermark, partition_id
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT, Partitioner, owners
from jetlet.errors import ItemFailedError, UnstableKeyError
from jetlet.execution.outbound_edge import (
    BroadcastEdge,
    NearEdge,
    PartitionedEdge,
    SingleTargetEdge,
    UnicastEdge,
)
from jetlet.execution.queue import BoundedQueue


def queues(count, capacity=4):
    return [BoundedQueue(capacity) for _ in range(count)]


def drained(queue):
    """All that is in a queue, flat."""
    out = []
    while (entry := queue.poll(1000)) is not None:
        out += entry if isinstance(entry, (list, tuple, range)) else [entry]
    return out


def partitioned(targets, key_fn=None):
    return PartitionedEdge(
        targets, Partitioner(key_fn), owners(DEFAULT_PARTITION_COUNT, len(targets))
    )


MAKERS = {
    "single": lambda targets: SingleTargetEdge(targets[0]),
    "unicast": UnicastEdge,
    "near": lambda targets: NearEdge(targets, [0], []),
    "partitioned": partitioned,
    "broadcast": BroadcastEdge,
}


# --- Single target ----------------------------------------------------------------------------


def test_single_target_gets_the_batch_itself():
    (queue,) = queues(1)
    batch = [1, 2]
    assert SingleTargetEdge(queue).put(batch)
    assert queue.poll(10) is batch


def test_single_target_resumes_where_the_queue_was_full():
    (queue,) = queues(1)
    edge = SingleTargetEdge(queue)
    assert not edge.put(list(range(6)))
    assert not edge.flush()
    assert drained(queue) == [0, 1, 2, 3]
    assert edge.flush() and edge.is_clear
    assert drained(queue) == [4, 5]


def test_single_target_refuses_a_key_that_others_would_refuse():
    (queue,) = queues(1)
    with pytest.raises(ItemFailedError) as caught:
        SingleTargetEdge(queue, Partitioner(None)).put([object()])
    assert isinstance(caught.value.__cause__, UnstableKeyError)


# --- Unicast ----------------------------------------------------------------------------------


def test_unicast_spreads_a_batch_over_all_targets():
    targets = queues(3)
    assert UnicastEdge(targets).put([1, 2, 3, 4, 5, 6])
    assert [drained(queue) for queue in targets] == [[1, 2], [3, 4], [5, 6]]


def test_unicast_goes_round_with_single_items():
    targets = queues(3)
    edge = UnicastEdge(targets)
    for item in range(6):
        edge.put([item])
    assert [drained(queue) for queue in targets] == [[0, 3], [1, 4], [2, 5]]


def test_unicast_skips_full_queues():
    targets = queues(3, capacity=2)
    targets[0].offer(["full"] * 2)
    targets[2].offer(["full"] * 2)
    edge = UnicastEdge(targets)
    assert edge.put(["a"]) and edge.put(["b"])
    assert drained(targets[1]) == ["a", "b"]


def test_unicast_waits_only_when_all_are_full():
    targets = queues(2, capacity=2)
    edge = UnicastEdge(targets)
    assert not edge.put(list(range(6)))
    got = drained(targets[1])
    assert edge.flush(), "the queue that has room takes what the other refused"
    got += drained(targets[0]) + drained(targets[1])
    assert sorted(got) == list(range(6))


# --- Near -------------------------------------------------------------------------------------


def near_edges(targets, producers=2, key_fn=None):
    """The edges of several producers; each is near every n-th target."""
    peers = []
    for index in range(producers):
        partitioner = None if key_fn is None else Partitioner(key_fn)
        NearEdge(targets, range(index, len(targets), producers), peers, partitioner)
    return peers


def take_turns(edges, targets, rounds):
    """Each producer sends what is named after it; return what each target got."""
    got = [[] for _ in targets]
    for _ in range(rounds):
        for index, edge in enumerate(edges):
            assert edge.put([index, index])
            for taken, queue in zip(got, targets, strict=True):
                taken += drained(queue)
    return got


def test_near_keeps_items_with_the_consumers_of_their_producer():
    targets = queues(4)
    edges = near_edges(targets)
    take_turns(edges, targets, NearEdge.LOOK_AFTER + 2)  # until they have seen each other
    assert list(map(set, take_turns(edges, targets, 50))) == [{0}, {1}, {0}, {1}]


def test_near_hands_a_batch_for_one_consumer_on_as_it_is():
    targets = queues(2)
    edges = near_edges(targets)
    take_turns(edges, targets, NearEdge.LOOK_AFTER + 2)
    batch = [1, 2, 3]
    assert edges[1].put(batch)
    assert targets[1].poll(10) is batch


def test_near_serves_the_consumers_of_producers_that_have_nothing():
    targets = queues(2)
    edges = near_edges(targets)
    take_turns(edges, targets, NearEdge.LOOK_AFTER + 2)
    alone = take_turns(edges[:1], targets, 6 * NearEdge.LOOK_AFTER)
    assert len(alone[1]) > len(alone[0]) // 4
    take_turns(edges, targets, 2 * NearEdge.LOOK_AFTER)
    assert list(map(set, take_turns(edges, targets, 20))) == [{0}, {1}]


def test_near_spreads_what_a_single_producer_sends():
    targets = queues(3)
    (edge,) = near_edges(targets, producers=1)
    assert edge.put([1, 2, 3, 4, 5, 6])
    assert [drained(queue) for queue in targets] == [[1, 2], [3, 4], [5, 6]]


def test_near_turns_to_who_has_nothing_when_its_own_consumer_does_not_get_on():
    targets = queues(2, capacity=2)
    edges = near_edges(targets)
    take_turns(edges, targets, NearEdge.LOOK_AFTER + 2)
    assert not edges[0].put([1, 2, 3, 4])
    for _ in range(NearEdge.PATIENCE):
        assert not edges[0].flush()
    assert edges[0].flush()
    assert drained(targets[1]) == [3, 4]
    assert edges[0].put([5, 6])
    assert drained(targets[1]) == [5, 6], "who has no room for long is passed over"
    assert drained(targets[0]) == [1, 2]
    assert edges[0].put([7, 8])
    assert drained(targets[0]) == [7, 8]


def share_of_who_takes_its_time(make):
    """Of two consumers, one drains its queue in each turn, the other comes to it in every second.

    The producer sends two batches in a turn, as long as it is not held back. The other consumer
    is as fast as the first one: what it takes in two turns is what that gets in two.
    """
    targets = queues(2, capacity=1024)
    edge = make(targets)
    got = [0, 0]
    for turn in range(1000):
        if edge.flush():
            _ = edge.put(range(1024)) and edge.put(range(1024))
        got[0] += len(drained(targets[0]))
        if turn % 2:
            got[1] += len(drained(targets[1]))
    return got[1] / sum(got)


def test_near_does_not_give_most_to_who_drains_its_queue_at_once():
    assert share_of_who_takes_its_time(UnicastEdge) < 0.4
    assert share_of_who_takes_its_time(lambda targets: NearEdge(targets, [0, 1], [])) > 0.45


def test_near_does_not_turn_to_who_has_enough():
    targets = queues(2, capacity=2)
    edges = near_edges(targets)
    take_turns(edges, targets, NearEdge.LOOK_AFTER + 2)
    assert edges[1].put([9])
    assert not edges[0].put([1, 2, 3, 4])
    for _ in range(2 * NearEdge.PATIENCE):
        assert not edges[0].flush()
    assert drained(targets[0]) == [1, 2]
    assert edges[0].flush()
    assert drained(targets[0]) == [3, 4]


def test_near_sends_special_items_to_all():
    targets = queues(2)
    edges = near_edges(targets)
    assert edges[0].put_special(Watermark(5))
    assert [drained(queue) for queue in targets] == [[Watermark(5)]] * 2


def test_near_refuses_a_key_that_others_would_refuse():
    targets = queues(2)
    edges = near_edges(targets, key_fn=lambda item: item)
    with pytest.raises(ItemFailedError) as caught:
        edges[0].put([object()])
    assert isinstance(caught.value.__cause__, UnstableKeyError)


# --- Partitioned ------------------------------------------------------------------------------


def test_partitioned_sends_equal_keys_to_their_owner():
    targets = queues(3, capacity=1000)
    words = [f"word {i % 50}" for i in range(300)]
    partitioned(targets, lambda item: item[0]).put([(word, i) for i, word in enumerate(words)])
    for index, queue in enumerate(targets):
        got = drained(queue)
        assert got, "271 partitions leave no processor of three without work"
        assert all(partition_id(word) % 3 == index for word, _ in got)
        assert [i for _, i in got] == sorted(i for _, i in got)


def test_key_is_computed_once_however_often_a_queue_is_full():
    calls = Counter()

    def key(item):
        calls[item] += 1
        return item

    targets = queues(2, capacity=1)
    edge = partitioned(targets, key)
    done = edge.put(list(range(20)))
    while not done:
        for queue in targets:
            drained(queue)
        done = edge.flush()
    assert set(calls.values()) == {1}


def test_key_function_that_fails_names_the_item():
    edge = partitioned(queues(2), lambda item: 1 // item)
    with pytest.raises(ItemFailedError) as caught:
        edge.put([3, 2, 0, 1])
    assert caught.value.item == 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- Broadcast --------------------------------------------------------------------------------


def test_broadcast_gives_every_target_every_item():
    targets = queues(3)
    assert BroadcastEdge(targets).put([1, 2])
    assert [drained(queue) for queue in targets] == [[1, 2]] * 3


def test_partly_accepted_broadcast_is_resumed_and_never_resent():
    slow, fast = queues(2, capacity=2)
    edge = BroadcastEdge([slow, fast])
    slow.offer(["old"])
    assert not edge.put([1, 2])
    assert drained(fast) == [1, 2]
    assert not edge.flush()
    assert drained(slow) == ["old", 1]
    assert edge.flush()
    assert drained(slow) == [2]
    assert drained(fast) == []


# --- Special items ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(MAKERS))
def test_special_item_goes_to_every_target_once(policy):
    targets = queues(1 if policy == "single" else 3, capacity=1)
    edge = MAKERS[policy](targets)
    targets[0].offer(["full"])
    assert not edge.put_special(Watermark(5))
    assert not edge.flush()
    rest = [drained(queue) for queue in targets[1:]]
    assert rest == [[Watermark(5)]] * len(rest)
    assert drained(targets[0]) == ["full"]
    assert edge.flush()
    assert drained(targets[0]) == [Watermark(5)]
    assert all(drained(queue) == [] for queue in targets[1:])


def test_emitted_counts_user_items_when_they_are_put():
    edge = BroadcastEdge(queues(2, capacity=1))
    edge.put([1, 2, 3])
    assert edge.emitted == 3
    edge.flush()
    edge.put_special(DONE)
    assert edge.emitted == 3


# --- Against a model --------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(MAKERS)),
    st.integers(1, 4),
    st.integers(1, 16),
    st.lists(st.one_of(st.integers(1, 12), st.just("special")), max_size=12),
    st.randoms(),
)
def test_nothing_is_lost_repeated_or_overtaken(policy, count, capacity, puts, random):
    targets = queues(1 if policy == "single" else count, capacity)
    edge = MAKERS[policy](targets)
    got = [[] for _ in targets]
    sent, number = [], 0

    def consume():
        index = random.randrange(len(targets))
        entry = targets[index].poll(random.randint(1, 4))
        if entry is not None:
            got[index] += [entry] if isinstance(entry, Watermark) else entry

    for put in puts:
        if put == "special":
            sent.append(Watermark(number))
            done = edge.put_special(sent[-1])
        else:
            batch = list(range(number, number + put))
            sent += batch
            done = edge.put(batch)
            number += put
        for _ in range(10_000):
            if done:
                break
            before = sum(map(len, targets))
            consume()
            freed = sum(map(len, targets))
            done = edge.flush()
            assert freed <= before
            assert edge.has_moved == (sum(map(len, targets)) > freed)
        assert done and edge.is_clear
    for index, queue in enumerate(targets):
        got[index] += drained(queue)

    items = [item for item in sent if not isinstance(item, Watermark)]
    specials = [item for item in sent if isinstance(item, Watermark)]
    for mine in got:
        assert [item for item in mine if isinstance(item, Watermark)] == specials
    if policy in ("broadcast", "single"):
        assert all(mine == sent for mine in got)
    else:
        everything = [item for mine in got for item in mine if not isinstance(item, Watermark)]
        assert sorted(everything) == items
    for mine in got:  # no item crosses a special one
        low = 0
        for entry in mine:
            if isinstance(entry, Watermark):
                low = entry.timestamp
            else:
                assert entry >= low
