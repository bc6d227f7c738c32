/* The callbacks for modules' calls, as methods of Python: a part of calls.h. */

RAISING_FAST(calls_enter)
RAISING_FAST(calls_leave)
RAISING_FAST(calls_measure)
RAISING(calls_abandon)
RAISING(calls_begin)
RAISING(calls_end)
RAISING(calls_settle)
RAISING(calls_columns)
RAISING(calls_pack)

static Method calls_methods[] = {
    {"enter", (void *)calls_enter_or_raise, FAST_CALL, NULL},
    {"leave", (void *)calls_leave_or_raise, FAST_CALL, NULL},
    {"measure", (void *)calls_measure_or_raise, FAST_CALL, NULL},
    {"abandon", (void *)calls_abandon_or_raise, ONE_ARGUMENT, NULL},
    {"begin", (void *)calls_begin_or_raise, ONE_ARGUMENT, NULL},
    {"end", (void *)calls_end_or_raise, NO_ARGUMENTS, NULL},
    {"settle", (void *)calls_settle_or_raise, NO_ARGUMENTS, NULL},
    {"columns", (void *)calls_columns_or_raise, ONE_ARGUMENT, NULL},
    {"pack", (void *)calls_pack_or_raise, ONE_ARGUMENT, NULL},
    {NULL, NULL, 0, NULL},
};

EXPORT Method *nanscope_calls_methods(void) { return calls_methods; }

EXPORT void nanscope_calls_use(const CallApi *api) { call_api = *api; }
