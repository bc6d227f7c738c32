/* Steps whose values C does not read: a part of hot.h. They lie on a device, or their verdict may come after the update.
 *
 * Python measures and finishes them, by the functions of the slow way, and gets what is held of the step. It says no
 * before it has finished anything where the step has to be replayed, and the slow way goes on as everywhere.
 */

/* What Python is given of each forward and its backward. */
enum { GIVEN = 5 };

/* Ask a function of Python: whether it says yes; -1 where it raises, a Ctrl-C say, which goes on to the script. */
static int ask(Object *function, Object *const *given, size_t count) {
    if (is_struck()) return -1;
    Object *said = hot_api.call(function, given, count, NULL);
    if (said == NULL) {
        hot.armed = 0;
        return -1;
    }
    hot_api.release(said); /* compared only: it is a singleton */
    return said == hot_api.yes;
}

INLINE Object *or_none(Object *object) { return object ? object : hot_api.none; }

/* Whether a gradient is there and lies on a device. */
static int is_on_device(const void *gradient) {
    int32_t device = ON_CPU;
    if (*(void *const *)gradient == hot_api.undefined || hot_api.device_type((void *)gradient, &device)) return 0;
    return device == ON_CUDA && hot_loop.finish;
}

/* Have Python finish the step; answers as hot_before_step. */
static Object *finish_late(int64_t started) {
    Object *given[GIVEN * MAX_MICRO_STEPS];
    hot.samples = 0;
    for (int64_t i = 0; i < hot_loop.micro_steps; i++) {
        const HotCall *call = &hot_calls[i];
        Object *of_call[GIVEN] = {call->inputs->args, call->inputs->kwargs, call->loss, or_none(call->unscaled),
                                  or_none(call->noted)};
        memcpy(&given[GIVEN * i], of_call, sizeof of_call);
        hot.samples += call->samples;
    }
    hot.step_own_ns += now_ns() - started;
    const int is_finished = ask(hot_loop.finish, given, (size_t)(GIVEN * hot_loop.micro_steps));
    if (is_finished < 0) return NULL;
    if (!is_finished) return refuse();
    if (!hot.armed) return answer(1); /* another thread has had the slow way go on meanwhile */
    hot.last_end_ns = hot.free_since_ns = now_ns();
    begin_phase(PHASE_UPDATE, hot.last_end_ns);
    hot.step++;
    hot.steps++;
    hot.state = IN_UPDATE;
    nested_updates = 0;
    hot.beats++;
    return answer(1);
}
