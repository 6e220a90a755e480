"""What people look at: the live page, reports, drawings, and what notebooks show."""
