"""Members that Spark hosts in the tasks of a barrier stage."""
