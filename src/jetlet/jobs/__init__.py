"""Jobs and the engine that runs them in this process."""
