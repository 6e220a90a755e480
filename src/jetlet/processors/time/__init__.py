"""What goes by event time: timestamps, windows, joins by time, state that expires."""
