"""NEXMark: an auction house, as the public definition of the benchmark has it.

``events`` makes the bids, auctions and persons, ``queries`` has the queries as pipelines with
expressions, ``answers`` the same by hand in plain Python, ``spark_queries`` and ``flink_queries``
in Structured Streaming and in Flink SQL. ``python -m benchmarks.nexmark`` compares all of them.
"""
