"""Short ways into OpenTelemetry's own SDK, for what every operation passes.

The only folder that names private parts of the SDK. Each way is checked once against what the
public way does; where the SDK differs from what is known here, the public way is taken.
"""
