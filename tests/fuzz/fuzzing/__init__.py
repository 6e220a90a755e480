"""Random pipelines, what plain Python makes of them, and what each host makes of them."""
