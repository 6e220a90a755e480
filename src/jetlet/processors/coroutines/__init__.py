"""Coroutine functions: calls in flight, their pools and deadlines."""
