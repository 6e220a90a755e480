"""Where items come in and go out: readers of sources, writers of sinks."""
