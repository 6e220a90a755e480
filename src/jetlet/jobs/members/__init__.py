"""Jobs on several member processes: who starts them, what they are told, what they send."""
