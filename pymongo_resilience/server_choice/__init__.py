"""Which server an operation may go to, which one it goes to, and why to no other."""
