/* Callgrind's client requests, for a program that is not written in C. Outside of valgrind they do nothing. */
#include <valgrind/callgrind.h>

void begin_counting(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void end_counting(void) {
    CALLGRIND_DUMP_STATS;
    CALLGRIND_STOP_INSTRUMENTATION;
}
