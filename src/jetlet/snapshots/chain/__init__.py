"""Chains: state that is saved by what has changed of it since it was saved last.

Each snapshot, or micro-batch, adds a file with the keys that were touched since the one before. The
state is what a *chain* of files makes, the newest last: of each key its newest value counts. What
refers to a chain, the record of a snapshot or of a batch, names all of its files.

No chain grows for ever, and nothing is ever rewritten at once: to the keys that were touched each
snapshot adds some that were not, until it has been over all of them. Then the files from before
that began are not needed any more. See :class:`~jetlet.snapshots.chain.sweep.Sweep`.

What has changed is pickled while the processor goes on, as it was at the barrier (``pending``), and
much of it before that, while the processor has nothing else to do (``early``).

``part`` is what a processor adds to the chain of its member; ``contents`` reads chains for whoever
restores a snapshot or looks into one. Micro-batches apply the files to the state of before
(:mod:`jetlet.spark.micro_batch.state_chain`).
"""
