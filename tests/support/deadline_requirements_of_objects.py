"""The requirements about cursors, change streams, sessions, GridFS and command runners.

A part of deadline_requirements.py.
"""

from __future__ import annotations

from support.deadline_rows import Section, differs, documented, driver, held, not_applicable

CURSORS = (
    Section("Cursors", (
        held("cursors-1", "what makes a cursor has a timeoutMode: for its life, or by iteration",
             "cursor_timeouts::test_the_mode_is_set_where_timeouts_are"),
        differs("cursors-2", "a mode without a timeout is an error",
                "That of an `override`, a `bind` or a rule is. That of the process is a default "
                "for what has a timeout, and no error.",
                "timeout_modes::test_a_mode_without_a_timeout_is_an_error_and_nothing_is_sent",
                "timeout_modes::test_a_policy_may_not_say_it_either_and_the_process_may"),
        held("cursors-3", "by iteration it holds for a whole `next`, not for single commands",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on",
             "cursor_timeouts::test_by_iteration_each_batch_has_the_time_anew",
             why="A cursor's `next` sends one getMore at most; a change stream's sends many. All "
                 "batches of a `to_list` share one."),
        driver("cursors-4", "where a tailable cursor sends getMores in a loop, they share it",
               "tailable_cursors::test_a_next_that_takes_too_long_is_a_timeout",
               why="pymongo sends one for each `next`."),
        held("cursors-5", "a getMore and the resume of a change stream share it",
             "change_stream_timeouts::test_a_resume_shares_the_time_of_its_next"),
        held("cursors-6", "`close()` can be given a timeout of its own",
             "closing_after_expiry::test_which_time_it_is",
             why="By an `override` around it."),
        held("cursors-7", "which then holds",
             "closing_after_expiry::test_which_time_it_is"),
        held("cursors-8", "otherwise killCursors has the timeout of the making, anew",
             "closing_after_expiry::test_closing_has_the_whole_time_of_the_operation_again",
             "closing_after_expiry::test_after_a_timeout_the_servers_cursor_is_gone"),
        held("cursors-9", "also where leaving a block closes it",
             "closing_after_expiry::test_closing_has_the_whole_time_of_the_operation_again"),
    )),
    Section("Non-tailable Cursors", (
        held("lifetime-1", "by default it holds for the first command and the cursor's life",
             "cursor_timeouts::test_a_life_ends_at_a_batch_and_what_is_there_already_is_given",
             "cursor_timeouts::test_the_applications_own_timeout_is_a_life_and_the_error_says_so",
             "cursor_timeouts::test_a_life_begins_with_the_first_command",
             why="Where the application sets it; one of the configuration is by iteration "
                 "([D17](deviations.md#timeouts))."),
        held("lifetime-2", "each `next` has what is left",
             "cursor_timeouts::test_a_life_begins_with_the_first_command",
             "cursor_timeouts::"
             "test_all_batches_of_a_list_have_one_timeout"),
        held("lifetime-3", "a getMore carries no maxTimeMS",
             "cursor_timeouts::test_a_life_ends_at_a_batch_and_what_is_there_already_is_given",
             "time_limits::test_every_operation_has_what_is_left_and_no_older_limit"),
        held("lifetime-4", "documents that are there are given when the time is over",
             "cursor_timeouts::test_a_life_ends_at_a_batch_and_what_is_there_already_is_given"),
        held("lifetime-5", "only where a getMore is needed there is a timeout",
             "cursor_timeouts::test_a_life_ends_at_a_batch_and_what_is_there_already_is_given"),
        held("iteration-1", "by iteration, an aggregate with $out or $merge is an error",
             "timeout_modes::test_an_aggregate_that_writes_cannot_be_by_iteration"),
        held("iteration-2", "the first command has the timeout",
             "cursor_timeouts::test_by_iteration_the_first_command_has_the_time_as_well"),
        held("iteration-3", "and carries no maxTimeMS",
             "cursor_timeouts::test_by_iteration_each_batch_has_the_time_anew",
             "cursor_timeouts::"
             "test_each_batch_ends_by_itself_and_the_driver_keeps_its_connection_in_order"),
        held("iteration-4", "each `next` has the timeout anew",
             "cursor_timeouts::test_by_iteration_each_batch_has_the_time_anew"),
        held("iteration-5", "a getMore carries no maxTimeMS",
             "cursor_timeouts::test_by_iteration_each_batch_has_the_time_anew"),
    )),
    Section("Tailable Cursors", (
        held("tailable-1", "they are by iteration; to ask for a life is an error",
             "timeout_modes::test_a_tailable_cursor_has_no_life",
             "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        held("tailable-2", "it holds for the first command, and for each `next` anew",
             "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit",
             "tailable_cursors::test_a_next_that_takes_too_long_is_a_timeout",
             why="One of the configuration does not limit the wait for news "
                 "([D17](deviations.md#timeouts))."),
        held("tailable-3", "without awaitData, no command carries maxTimeMS",
             "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        held("await-1", "with awaitData, it holds for the first command",
             "tailable_cursors::test_a_first_command_that_takes_too_long_is_a_timeout"),
        held("await-2", "and for each `next` anew",
             "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        held("await-3", "a getMore's maxTimeMS does not come from it",
             "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        driver("await-4", "maxAwaitTimeMS can be set",
               "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        held("await-5", "a maxAwaitTimeMS that is not less than the timeout is an error",
             "timeout_modes::"
             "test_a_server_must_not_be_asked_to_wait_longer_than_there_is_time"),
        driver("await-6", "and is the maxTimeMS of getMores",
               "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
        differs("await-7", "with awaitData, the first command carries maxTimeMS, like any command",
                "The server counts the time of later batches to it (SERVER-51153), which cuts "
                "short "
                "what each `next` is to have anew: left out, as without awaitData "
                "([D14](deviations.md#timeouts)).",
                "tailable_cursors::test_it_lives_on_and_the_server_is_given_no_limit"),
    )),
    Section("Change Streams", (
        held("streams-1", "`watch` has a timeout and maxAwaitTimeMS",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on"),
        held("streams-2", "a maxAwaitTimeMS that is not less than the timeout is an error",
             "timeout_modes::"
             "test_a_server_must_not_be_asked_to_wait_longer_than_there_is_time"),
        held("streams-3", "they have no timeoutMode",
             "timeout_modes::test_a_change_stream_has_no_mode"),
        held("streams-4", "the timeout holds for the first aggregate",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on"),
        held("streams-5", "and for each `next` anew",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on",
             why="Where the application sets it "
                 "([D17](deviations.md#timeouts)). "
                 "Not of one that is opened by hand, with `aggregate`: that is taken for an "
                 "ordinary cursor."),
        held("streams-6", "a getMore's maxTimeMS does not come from it",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on"),
        held("streams-7", "it is maxAwaitTimeMS, if that is set",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on"),
        held("streams-8", "a `next` that times out does not end the stream",
             "change_stream_timeouts::test_it_holds_for_a_whole_next_and_the_following_goes_on",
             "change_stream_timeouts::test_a_resume_shares_the_time_of_its_next"),
        held("streams-9", "the following `next` resumes it first",
             "change_stream_timeouts::test_after_a_timeout_it_resumes_before_it_asks_for_more"),
        held("streams-10", "an error of that resume is raised",
             "change_stream_timeouts::test_the_error_of_a_resume_is_the_applications"),
        documented("streams-11", "documented: call `next` again, or make a new stream",
             "Cursors and change streams", "timeouts.md#cursors-and-change-streams"),
        documented("streams-12", "documented: make one with a higher timeout if it expires before "
                                 "any event",
             "Cursors and change streams", "timeouts.md#cursors-and-change-streams"),
    )),
)  # fmt: skip

SESSIONS = (
    Section("Sessions", (
        held("sessions-1", "a session takes a defaultTimeoutMS, for commitTransaction, "
             "abortTransaction, withTransaction and endSession",
             "session_timeouts::test_the_nearest_timeout_holds_for_a_transactions_end",
             "transaction_timeouts::"
             "test_one_deadline_is_over_the_callbacks_operations_and_the_commit",
             why="`default_timeout_ms` of `start_session`."),
        held("sessions-2", "without one it has the client's timeout",
             "session_timeouts::test_none_inherits_and_what_the_driver_knows_is_handed_on",
             "session_timeouts::test_the_nearest_timeout_holds_for_a_transactions_end"),
        not_applicable("sessions-3", "getting an implicit session has what is left, where it "
                                     "blocks",
                       "It does not block in pymongo."),
        driver("sessions-4", "`start_session` has the client's timeout",
               "session_timeouts::test_start_session_itself_has_no_timeout_of_its_own",
               why="It sends nothing and waits for nothing."),
        held("sessions-5", "it cannot be given another",
             "session_timeouts::test_start_session_itself_has_no_timeout_of_its_own"),
    )),
    Section("Convenient Transactions API", (
        held("transactions-1", "one timeout is over the whole of with_transaction",
             "transaction_timeouts::"
             "test_one_deadline_is_over_the_callbacks_operations_and_the_commit",
             "transaction_timeouts::test_it_is_repeated_until_the_deadline_and_no_longer"),
        held("transactions-2", "the session carries it to the callback's operations",
             "transaction_timeouts::"
             "test_one_deadline_is_over_the_callbacks_operations_and_the_commit"),
        held("transactions-3", "where it is kept is marked as private",
             "transaction_timeouts::test_what_the_session_keeps_is_marked_as_private"),
        documented("transactions-4", "documented: changing it is at one's own risk",
             "Transactions and GridFS", "timeouts.md#transactions-and-gridfs"),
        documented("transactions-5", "documented: operations without the session are not covered",
             "Transactions and GridFS", "timeouts.md#transactions-and-gridfs"),
        documented("transactions-6", "documented: a timeout inside, with the session, is an error",
             "Transactions and GridFS", "timeouts.md#transactions-and-gridfs"),
        held("transactions-7", "an abort has the timeout anew",
             "transaction_timeouts::test_the_abort_after_the_deadline_has_the_whole_timeout_again"),
        held("transactions-8", "without a timeout, the limit of 120 s is as ever",
             "transaction_timeouts::test_the_limit_of_120_s_is_for_those_without_a_deadline"),
        held("transactions-9", "that is no timeout of 120 s",
             "transaction_timeouts::test_the_limit_of_120_s_is_for_those_without_a_deadline",
             "transaction_timeouts::test_without_a_deadline_all_is_as_the_driver_has_it"),
    )),
    Section("GridFS API", (
        held("gridfs-1", "a bucket has its database's timeout",
             "gridfs_timeouts::test_a_stream_has_its_buckets_timeout_for_its_whole_life"),
        held("gridfs-2", "each of its methods can be given one",
             "time_limits::test_every_operation_has_what_is_left_and_no_older_limit",
             "gridfs_timeouts::test_so_has_each_method_of_more_than_one_command",
             "gridfs_timeouts::test_a_cursor_over_files_takes_its_timeout_along_and_has_a_life"),
        held("gridfs-3", "a stream has it for its whole life",
             "gridfs_timeouts::test_a_stream_has_its_buckets_timeout_for_its_whole_life",
             "gridfs_timeouts::test_so_has_one_that_is_written"),
        held("gridfs-4", "its opening, reads and writes, close and abort included",
             "gridfs_timeouts::test_a_stream_has_its_buckets_timeout_for_its_whole_life",
             "gridfs_timeouts::test_so_has_one_that_is_written"),
        held("gridfs-5", "so that the last `close()` sends nothing after its end",
             "gridfs_timeouts::test_so_has_one_that_is_written",
             "gridfs_timeouts::"
             "test_closing_one_too_late_leaves_its_cursor_to_the_background_task"),
        held("gridfs-6", "an upload from or a download to the application's stream has it as a "
                         "whole",
             "gridfs_timeouts::test_an_upload_has_one_deadline_as_a_whole",
             "gridfs_timeouts::test_so_has_each_method_of_more_than_one_command"),
        documented("gridfs-7", "documented: a slow stream of the application's can make it longer",
             "Transactions and GridFS", "timeouts.md#transactions-and-gridfs"),
        held("gridfs-8", "its cursors have the timeout for their life",
             "gridfs_timeouts::test_a_cursor_over_files_takes_its_timeout_along_and_has_a_life",
             "gridfs_timeouts::test_the_cursors_of_a_stream_have_its_life_whatever_mode_is_set"),
    )),
    Section("RunCommand", (
        documented("command-runner-1", "documented: what becomes of a maxTimeMS in the command's "
                                 "document",
             "Older timeouts", "timeouts.md#older-timeouts"),
        held("command-runner-2", "the document is not searched for one",
             "time_limits::test_the_applications_own_limits"),
    )),
)  # fmt: skip

OBJECTS = (*CURSORS, *SESSIONS)
