"""Features that an application asks for. They use extension points of the core, which imports none
of them.
"""
