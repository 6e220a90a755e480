"""What may be larger than memory: sorting, and tables and spools on disk."""
