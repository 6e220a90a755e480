"""Network edges: how items get from a member to another, and how a slow reader slows a sender."""
