"""The stock processors behind the stages of a pipeline, one file each.

Those that look at one item, or one key, after the other are here. ``ends`` has those that read and
write, ``time`` those that go by event time, ``sorting`` what may be larger than memory, and
``coroutines`` what calls coroutine functions.
"""
