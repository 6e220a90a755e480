"""The event loop of tasks: who runs when, on which thread."""
