"""What tasks keep: stores, changelogs, checkpoints, serdes."""
