"""Storage: file systems, atomic replacement of files, and compression."""
