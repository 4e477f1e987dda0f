"""Functions whose bugs reach the application, each with its reason. There may be ten at most."""

ENTRY = "pymongo or the application calls it: no code of the library is around it"

KNOWN = {
    "engine.internal_errors.internal_error_types": (
        "each boundary calls it, to learn which errors are bugs"
    ),
    "interceptor._wrapper.wrapper": ENTRY,
    "interceptor._async_wrapper.wrapper": ENTRY,
    "interceptor.outside_of_operations.gate": ENTRY,
    "retries.loop_subclass._run.run": ENTRY,
    "retries.loop_subclass._async_run.run": ENTRY,
    "cursor_methods.batch_wrapper.wrapper": ENTRY
    + ". It decides whether the interceptor's wrapper runs",
    "timeouts.command_limits.limit.wrapper": ENTRY + ". It guards its own lines",
    "timeouts.command_limits.Reply.wrapper.wrapper": ENTRY + ". It decides as that of batches",
    "timeouts.bounded_waits._kept_while_sending.wrapper": ENTRY + ". Before Python 3.12 alone",
}
