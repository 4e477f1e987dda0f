"""GridFS: wrapped once the application has imported it; each method and stream has one deadline."""
