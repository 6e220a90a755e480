"""Snapshots: the state of a job on disk, and who decides when it counts.

``coordinator`` decides, ``writer`` and ``state_sink`` bring the state of a member to files,
``store`` keeps them in a directory, ``format`` says what is in them.
"""
