"""What an application asks for, over the seams that the core uses; the core imports none of it."""
