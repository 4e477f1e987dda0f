"""Each MUST of MongoDB's specification about timeouts, in our words, with what holds it.

Source: Client-Side Operations Timeout, its normative sections, and the few rules there that have no
MUST but are rules. ``python tests/test_docs.py`` writes tests/deadline-requirements.md from
this table, and test_deadline_requirements.py checks both. Cursors, sessions and GridFS are in
deadline_requirements_of_objects.py.
"""

from __future__ import annotations

from support.deadline_requirements_of_objects import OBJECTS
from support.deadline_rows import (
    Section,
    differs,
    documented,
    driver,
    held,
    not_applicable,
    of_encryption,
    unreachable,
)

OPTIONS = (
    Section("min(a, b)", (
        held("min-1", "0 disables the timeout: of 0 and another timeout, the other holds",
             "nested_timeouts::test_of_any_nested_timeouts_the_shortest_holds",
             "waits::test_selection_has_its_own_timeout_without_a_deadline_and_without_an_end",
             "waits::test_a_timeout_without_end_leaves_a_full_pool_the_selections_timeout",
             "waits::test_a_timeout_without_end_leaves_a_handshake_the_selections_timeout"),
    )),
    Section("timeoutMS", (
        held("option-1", "a negative timeout is an error",
             "negative_timeouts::test_in_what_is_ours", "negative_timeouts::test_in_a_uri",
             "negative_timeouts::test_as_a_keyword_it_is_pymongos_error",
             "session_timeouts::test_what_is_no_timeout_is_refused"),
        held("option-2", "it can be set for a client, a database, a collection and an operation",
             "timeout_precedence::test_the_nearest_holds", "bind::test_the_timeout_is_carried",
             why="By `timeoutMS`, rules and `bind`, and `override`."),
        held("option-3", "what does not say inherits from the level above",
             "timeout_precedence::test_the_nearest_holds", "bind::test_the_timeout_is_carried"),
        held("option-4", "once set, it cannot be unset further down",
             "nested_timeouts::test_of_any_nested_timeouts_the_shortest_holds"),
        not_applicable("option-5", "types for durations: their special values mean what they do",
                       "Timeouts are numbers here."),
        not_applicable("option-6", "types for durations: there is a way to say infinite",
                       "Timeouts are numbers here; 0 says it."),
    )),
    Section("Backwards Breaking Considerations", (
        held("compatible-1", "what breaks existing behaviour does so only where a timeout is set",
             "deadlines::test_without_a_deadline_no_error_changes_its_type",
             "deadlines::test_the_chain_of_an_error_is_that_of_plain_pymongo",
             "timeout_errors::test_code_50_under_a_deadline_and_without"),
        held("compatible-2", "without one, the older timeouts hold as ever",
             "time_limits::test_the_sockets_own_timeout",
             "time_limits::test_the_applications_own_limits",
             "time_limits::test_the_wtimeout_of_a_collection",
             "waits::test_the_older_timeout_of_the_pool_holds_without_a_deadline_alone"),
        documented("compatible-3", "these changes are documented",
             "What changes once there is one", "timeouts.md#what-changes-once-there-is-one"),
        not_applicable("compatible-4", "once the older options are gone, all of it holds always",
                       "pymongo has them still."),
    )),
    Section("Deprecations", (
        held("deprecated-1", "socketTimeoutMS, waitQueueTimeoutMS and wTimeoutMS are deprecated",
             "deprecated_options::test_a_client_with_a_timeout_names_its_older_options",
             why="A warning where a timeout sets them aside; without one, pymongo has not "
                 "deprecated "
                 "them."),
        held("deprecated-2", "so are maxTimeMS and maxCommitTimeMS of operations",
             "deprecated_options::test_a_limit_of_a_method_is_named_once_for_each_client"),
    )),
)  # fmt: skip

BEHAVIOUR = (
    Section("Timeout Behavior", (
        held("behaviour-1", "what is left is known at every step of an operation",
             "time_limits::test_each_attempt_has_what_is_left_then",
             "handshake_deadlines::test_the_operations_limit_is_made_when_its_connection_is_there"),
    )),
    Section("Operations", (
        held("operations-1", "it holds for all operations that the specification lists, and for "
             "those of cursors that block",
             "time_limits::test_every_operation_has_what_is_left_and_no_older_limit",
             "cursor_timeouts::"
             "test_all_batches_of_a_list_have_one_timeout",
             "whole_calls::test_all_commands_of_a_call_have_one_end",
             why="All but client-side encryption, below."),
    )),
    Section("Validation and Overrides", (
        held("overrides-1", "under it the deprecated timeouts are ignored",
             "time_limits::test_every_operation_has_what_is_left_and_no_older_limit",
             "time_limits::test_the_applications_own_limits",
             "time_limits::test_the_sockets_own_timeout",
             "time_limits::test_the_wtimeout_of_a_collection",
             "waits::test_the_older_timeout_of_the_pool_holds_without_a_deadline_alone",
             "waits::test_a_timeout_without_end_leaves_a_full_pool_the_selections_timeout",
             "time_limits::test_the_commit_limit_of_a_transaction"),
        held("overrides-2", "inside of with_transaction, an operation with the session has the "
             "session's timeout",
             "transaction_timeouts::"
             "test_one_deadline_is_over_the_callbacks_operations_and_the_commit"),
        held("overrides-3", "there, a timeout of its own is an error",
             "transaction_timeouts::"
             "test_a_timeout_inside_for_the_session_is_refused"),
    )),
    Section("Errors", (
        held("errors-1", "without a timeout, errors are what they were",
             "deadlines::test_without_a_deadline_no_error_changes_its_type",
             "timeout_errors::test_code_50_under_a_deadline_and_without",
             "handshake_deadlines::test_without_a_deadline_the_sockets_own_timeout_ends_it",
             "waits::test_without_a_deadline_connecting_has_its_own_timeout"),
        held("errors-2", "when it expires, whatever blocks ends, and an error is raised",
             "timeout_errors::test_a_reply_that_does_not_come",
             "waits::test_selection_that_ends_with_the_deadline_is_an_expiry",
             "deadlines::test_a_permanent_error_is_repeated_with_back_off_until_the_deadline"),
        held("errors-3", "that error can be told from others",
             "tests/unit/test_timeout_errors.py::"
             "test_it_is_the_drivers_class_as_well_wherever_it_goes",
             "timeout_errors::test_code_50_under_a_deadline_and_without",
             why="`OperationTimeoutError`, which is pymongo's own class as well."),
        held("errors-4", "it gives access to the error underneath",
             "timeout_errors::test_code_50_under_a_deadline_and_without",
             why="As its `__cause__`."),
        held("errors-5", "its text contains that error's",
             "timeout_errors::test_code_50_under_a_deadline_and_without",
             "transaction_timeouts::"
             "test_what_ends_it_is_an_error_of_the_drivers_around_the_last_one"),
        held("errors-6", "where there is none underneath, its text says when the expiry was "
                         "noticed",
             "timeout_errors::test_a_reply_that_does_not_come",
             "timeout_errors::test_no_server_for_a_write_that_is_not_acknowledged",
             why="There always is one; the text says the stage as well."),
    )),
    Section("Error Transformations", (
        held("transformed-1", "the server's own expiry becomes that error: at the top of a reply, "
                              "in "
             "writeErrors, in writeConcernError",
             "timeout_errors::test_code_50_under_a_deadline_and_without"),
        held("transformed-2", "it is told by code 50",
             "tests/unit/test_timeout_errors.py::test_what_is_an_expiry",
             "timeout_errors::test_code_50_under_a_deadline_and_without"),
        held("transformed-3", "and not by a name or a text",
             "timeout_errors::test_another_code_stays_what_it_is_under_a_deadline",
             "tests/unit/test_timeout_errors.py::test_no_name_and_no_text_makes_an_expiry"),
        held("transformed-4", "so does the expiry of reading from a socket and of writing to it",
             "timeout_errors::test_a_reply_that_does_not_come",
             "socket_deadlines::test_a_write_to_a_socket_ends_with_the_deadline"),
        differs("transformed-6", "so does the expiry of any other wait",
                "Not that of connectTimeoutMS or serverSelectionTimeoutMS while the operation has "
                "time left ([D22](deviations.md#timeouts)).",
                "waits::test_connecting_ends_with_the_deadline",
                "waits::test_connecting_that_ends_with_its_own_timeout_is_no_expiry"),
        unreachable("transformed-5", "so does the expiry of an HTTP request",
                    "Those are pymongo's own (OCSP, cloud logins, KMS), and it makes errors of "
                    "connections or of encryption from them."),
    )),
)  # fmt: skip

BLOCKING = (
    Section("Blocking Sections for Operation Execution", (
        not_applicable("blocking-session", "getting an implicit session, where it selects a server",
                       "pymongo takes one from its pool, without a server."),
        held("blocking-selection", "selecting a server",
             "waits::test_selection_that_ends_with_the_deadline_is_an_expiry"),
        held("blocking-checkout", "waiting for a connection of the pool",
             "waits::test_a_full_pool_is_waited_for_as_long_as_the_shorter_of_both"),
        unreachable("blocking-names", "resolving a host name",
                    "Part of connecting. A sync client's `getaddrinfo` blocks its thread in the "
                    "system's resolver; an async client awaits a thread that is blocked there, "
                    "no longer than there is time."),
        held("blocking-socket", "connecting a socket",
             "waits::test_connecting_ends_with_the_deadline"),
        held("blocking-tls", "the TLS handshake",
             "waits::test_a_tls_handshake_with_a_silent_peer_ends_with_the_deadline"),
        unreachable("blocking-ocsp", "OCSP requests",
                    "pymongo makes them inside of the TLS library's callback, with its HTTP "
                    "client: "
                    "with the shorter of 5 s and what is left, but for each read, not for all."),
        held("blocking-hello", "the first hello of a connection",
             "handshake_deadlines::test_a_handshake_ends_with_the_deadline"),
        held("blocking-login", "authentication that sends commands (SCRAM, PLAIN, X.509)",
             "handshake_deadlines::test_a_handshake_ends_with_the_deadline",
             why="Seen with PLAIN; the others are sent the same way."),
        unreachable("blocking-kerberos", "GSSAPI: requests to the KDC and TGS",
                    "The system's Kerberos library makes them."),
        unreachable("blocking-aws", "MONGODB-AWS: requests to ECS and EC2",
                    "The package pymongo-auth-aws makes them."),
        unreachable("blocking-encryption", "client-side encryption",
                    "See its section, below."),
        held("blocking-write", "writing to the socket",
             "socket_deadlines::test_a_write_to_a_socket_ends_with_the_deadline"),
        held("blocking-read", "reading the reply",
             "timeout_errors::test_a_reply_that_does_not_come",
             "socket_deadlines::test_the_timeout_is_that_of_all_reads_of_a_reply_together"),
        documented("blocking-documented", "the exceptions are documented",
             "What it cannot reach", "timeouts.md#what-it-cannot-reach"),
    )),
    Section("Server Selection", (
        held("selection-1", "selection and checkout have the shorter of serverSelectionTimeoutMS "
                            "and "
             "what is left",
             "waits::test_selection_ends_with_its_own_timeout_and_that_is_no_expiry",
             "waits::test_selection_that_ends_with_the_deadline_is_an_expiry",
             "waits::test_a_full_pool_is_waited_for_as_long_as_the_shorter_of_both",
             "waits::test_a_timeout_without_end_leaves_a_full_pool_the_selections_timeout"),
        held("selection-2", "selection then fails with a timeout",
             "waits::test_selection_ends_with_its_own_timeout_and_that_is_no_expiry",
             "waits::test_selection_that_ends_with_the_deadline_is_an_expiry",
             why="pymongo's `ServerSelectionTimeoutError`; an `OperationTimeoutError` as well "
                 "where "
                 "the operation's own time is over."),
        held("selection-3", "a checkout has what selection leaves of that",
             "wait_plans::test_no_wait_of_an_operation_ends_past_its_deadline",
             why="With a timeout of 0 as well; without any, checkout has a time of its own."),
        held("selection-4", "a socket has the shorter of connectTimeoutMS and what is left of that",
             "waits::test_connecting_ends_in_time_and_is_repeated_since_nothing_was_sent",
             "wait_plans::test_no_wait_of_an_operation_ends_past_its_deadline"),
        unreachable("selection-5", "other requests for a connection (OCSP) have the shorter of "
                                   "their "
                    "own timeout and what is left of that",
                    "pymongo takes the shorter of the two for OCSP; what is a limit for all of its "
                    "reads together, no layer above can make."),
        unreachable("selection-6", "those without a timeout of their own have what is left of that",
                    "The same; requests for cloud logins are made by other packages."),
        held("selection-7", "the commands of a handshake have what is left of that",
             "handshake_deadlines::"
             "test_it_ends_with_the_selection_timeout_and_is_repeated_since_nothing_was_sent"),
        differs("selection-8", "they carry maxTimeMS, like any command",
                "pymongo 4.17 to 4.20 add none to `hello` and to logins. The client waits no "
                "longer "
                "than it may; only a server that works on them is not told.",
                "handshake_deadlines::"
                "test_the_operations_limit_is_made_when_its_connection_is_there"),
        driver("selection-9", "without a timeout: serverSelectionTimeoutMS and waitQueueTimeoutMS",
               "waits::test_selection_has_its_own_timeout_without_a_deadline_and_without_an_end",
               "waits::test_the_older_timeout_of_the_pool_holds_without_a_deadline_alone"),
        driver("selection-10", "without one: connectTimeoutMS for the socket, socketTimeoutMS for "
                               "the "
               "commands of the handshake",
               "waits::test_without_a_deadline_connecting_has_its_own_timeout",
               "handshake_deadlines::test_without_a_deadline_the_sockets_own_timeout_ends_it"),
    )),
    Section("Command Execution", (
        held("command-1", "commands carry maxTimeMS",
             "time_limits::test_every_operation_has_what_is_left_and_no_older_limit",
             why="But for tailable cursors: see await-7."),
        differs("command-2", "the round-trip time is taken from the description that the server "
                "was selected by",
                "pymongo reads it from the server right after it was selected. A reset between "
                "the two makes it 0: the limit is a round trip longer then."),
        driver("command-3", "it is what is left, less the least round-trip time",
               "time_limits::test_the_round_trip_is_taken_off"),
        held("command-4", "where nothing is left then, nothing is sent, and the error is a timeout",
             "time_limits::test_nothing_is_sent_where_the_round_trip_does_not_fit",
             "time_limits::test_nothing_is_sent_with_less_than_a_millisecond_left"),
        driver("command-5", "it is added when all that blocks before is over",
               "handshake_deadlines::"
               "test_the_operations_limit_is_made_when_its_connection_is_there"),
        differs("command-6", "once the message is made, the time is looked at again",
                "pymongo looks before it makes the message, and sends it at once then; what "
                "encoding takes is not taken off the limit. 4.17 leaves no place to look again; "
                "for newer ones it would be a call more for each command, healthy ones too."),
        driver("command-7", "if it is over, the connection goes back to the pool",
               "time_limits::test_nothing_is_sent_where_the_round_trip_does_not_fit"),
        driver("command-8", "writing has what is left",
               "socket_deadlines::test_a_write_to_a_socket_ends_with_the_deadline"),
        differs("command-9", "before the reply is read, the time is looked at again",
                "pymongo reads once more, without waiting: a reply that has arrived already is "
                "given, late as it is. Left so: an error in its place would hide what happened."),
        driver("command-10", "if it is over, the connection is closed",
               "socket_deadlines::"
               "test_a_connection_whose_reply_did_not_come_in_time_is_closed"),
        held("command-11", "and a timeout is raised",
             "timeout_errors::test_a_reply_that_does_not_come"),
        driver("command-12", "reading has what is left",
               "timeout_errors::test_a_reply_that_does_not_come"),
        driver("command-13", "all reads of a reply share it",
               "socket_deadlines::"
               "test_the_timeout_is_that_of_all_reads_of_a_reply_together"),
        held("command-14", "a read or a write that times out becomes the error above",
             "timeout_errors::test_a_reply_that_does_not_come",
             "socket_deadlines::test_a_write_to_a_socket_ends_with_the_deadline"),
        driver("command-15", "without a timeout, socketTimeoutMS holds",
               "time_limits::test_the_sockets_own_timeout"),
    )),
    Section("Batching", (
        held("batching-1", "all batches of a bulk write have one timeout",
             "bulk_deadlines::test_one_deadline_is_over_all_its_commands"),
    )),
    Section("Retryability", (
        differs("retrying-1", "what can be repeated is, as often as there is time",
                "Not after overload errors, nor after those of a handshake, which count as such: "
                "five times, as Client Backpressure has it. Others are, with waits between "
                "([D1](deviations.md#retries)).",
             "bulk_deadlines::"
             "test_a_command_is_repeated_as_often_as_fits_and_never_past_the_deadline",
             "deadlines::test_a_permanent_error_is_repeated_with_back_off_until_the_deadline",
             "tests/support/engine/scenarios.py::mongodb: a storm until the deadline"),
        held("retrying-2", "when there is none, a timeout is raised",
             "deadlines::test_a_permanent_error_is_repeated_with_back_off_until_the_deadline"),
    )),
    Section("Client Side Encryption", (
        of_encryption("encryption-1", "its listCollections, finds for keys and commands for "
                               "mongocryptd have what is left"),
        of_encryption("encryption-2", "so have its requests to key management servers"),
        unreachable("encryption-3", "commands for mongocryptd carry no maxTimeMS",
                    "pymongo sends them through an ordinary client, which adds it under any "
                    "deadline. A mongocryptd and libmongocrypt are not part of the tests."),
        unreachable("encryption-4", "a mongocryptd is told by what it says of itself, `iscryptd`",
                    "pymongo does not keep that field of a hello."),
        differs("encryption-5", "explicit encryption has an option timeoutMS",
                "pymongo's `ClientEncryption` has none, and the library adds none; "
                "`pymongo.timeout` around its methods holds."),
    )),
    Section("Background Connection Pooling", (
        driver("background-1", "a connection that is made ahead (minPoolSize) has connectTimeoutMS "
               "for its socket",
               "background_connections::test_a_socket_is_made_within_the_connect_timeout"),
        differs("background-2", "the commands of its handshake have the client's timeoutMS",
                "They have pymongo's own, as MongoDB's tests of this text expect "
                "([D19](deviations.md#timeouts)).",
                "background_connections::"
                "test_a_handshake_slower_than_the_clients_timeout_fills_the_pool"),
        differs("background-3", "each of them has it anew", "As background-2.",
                "background_connections::"
                "test_a_handshake_slower_than_the_clients_timeout_fills_the_pool"),
        differs("background-4", "they carry maxTimeMS, like any command",
                "pymongo 4.17 to 4.20 add none to `hello` and to logins, as in selection-8."),
        driver("background-5", "without a timeout, they have socketTimeoutMS",
               "background_connections::"
               "test_without_a_timeout_a_handshake_has_that_of_the_socket"),
    )),
    Section("Server Monitoring", (
        held("monitoring-1", "monitors have no part in it",
             "nested_timeouts::test_nor_of_the_monitors_that_the_first_operation_starts"),
    )),
)  # fmt: skip

SECTIONS = (*OPTIONS, *BEHAVIOUR, *BLOCKING, *OBJECTS)
