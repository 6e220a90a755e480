"""Snapshots: the state of a job on disk, who decides when it counts, and the way back.

All that a snapshot passes through is here, but for the tasklet that calls the processors
(:mod:`jetlet.execution.processor_tasklet`) and the messages between processes
(:mod:`jetlet.jobs.members.attempt_snapshots`)::

    submitting process                        each member
    ------------------                        -----------
    job_snapshots   all attempts at a job
        |
    driver  <-----> snapshot_coordinator      context       what its tasklets share: which snapshot
        |           a state machine:              |         is under way, who has not answered
        |           events in, commands out     tasklet       the part of one tasklet
        |                                         |  chunks
        |   begin, finish                     state_sink    pickles entries at once
        +-----------------------------------> member            |
        |   saved: member_report                  |         writer        a thread, a file
        |  <--------------------------------------+             |
        v                                                       v
    store       areas, attempts, exports      directory     files of one snapshot
                                              chain         files that several have in common
    epochs      which attempts there were,    format        what is in a file, and its checksums
                what is committed

    on the way back
    store  -->  fit                           wiring  -->  restore       chunks to the processors
                does it go with the DAG?                                 that own their keys

``local`` is coordinator and only member in one, for a job that runs in this process. Processors
that are ``incremental`` save what has changed. Micro-batches use ``epochs``, ``format``, ``chain``,
``state_sink`` and ``restore``
(:mod:`jetlet.spark.micro_batch`). The drawing in ``docs/snapshots.svg`` has the same in time.
"""

from typing import TYPE_CHECKING

from jetlet._lazy import lazy

if TYPE_CHECKING:
    from jetlet.snapshots.reading import SnapshotContents, StateEntry, read

__all__ = ["SnapshotContents", "StateEntry", "read"]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "jetlet.snapshots.reading"))
