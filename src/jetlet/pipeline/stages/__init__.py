"""The stages that users build pipelines of, and what becomes of their arguments."""
