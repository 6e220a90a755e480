"""The log: durable, partitioned, in a directory that several processes write and follow."""

from jetlet.log.log import Log

__all__ = ["Log"]
