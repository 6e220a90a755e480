"""Launch: Java, the JVM behind a session, and the session itself."""
