"""Redis Streams as a source and as a sink."""
