/* A healthy step of an armed training loop, or one whose fault is known and lasts: a part of kernel.c, called by Python with its lock held.
 *
 * Five callbacks (forward, backward and the optimizer's step, before and after) keep references alone and, before
 * the update, measure all gradients and append one RAW record to the ring. Whatever is not as it was learned makes
 * a callback answer "no" before it has done anything: from there on the step goes the slow way, in Python.
 *
 * Neither Python's nor torch's headers are needed: both are reached through addresses that hot_binding.py looks up
 * and checks. One training of a process can be armed at a time. `hot_state.h` has what is known of the loop and of the
 * step under way. `hot_forward.h` and `hot_backward.h` follow the calls, `hot_finish.h` the end of a step;
 * `hot_gradients.h` finds the gradients, `hot_ring.h` writes records, `hot_updates.h` looks at updates,
 * `hot_phases.h` adds up what the phases of a step take, `errors.h` keeps what a signal's handler raises meanwhile.
 * Where gradients lie on a device, or their verdict may be late, Python measures them instead: `hot_late.h`.
 */
#include "hot_state.h"
#include "errors.h"

INLINE int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

INLINE Object *type_of(const Object *object) {
    return *(Object **)((const char *)object + hot_api.type_offset);
}

/* An at::Tensor inside a Python tensor, which is what torch's C functions take. */
INLINE void *handle_of(const Object *tensor) { return (char *)tensor + hot_api.tensor_offset; }

/* Bytes into a c10::TensorImpl, and into what counts the writes to it; checked before use. */
enum { VERSION_COUNTER = 40, VERSION = 16 };

INLINE Object *kept(Object *object) {
    if (object) hot_api.keep(object);
    return object;
}

/* Nanoseconds that the callbacks for modules' calls have taken of the step under way: see calls.h. */
static int64_t observation_ns(void);

static void drop(Object **place) {
    Object *object = *place;
    *place = NULL;
    if (object) hot_api.release(object);
}

INLINE Object *answer(int is_yes) { return kept(is_yes ? hot_api.yes : hot_api.no); }

static Object *pass_on(void) { return kept(hot_api.none); }

/* Not as learned: the rest of the step, and those that follow, go the slow way until Python arms again. */
static Object *refuse_at(int line) {
    hot.armed = 0;
    hot.refused++;
    hot.refused_at = line;
    return answer(0);
}

#define refuse() refuse_at(__LINE__)

/* How often a tensor was written, as `_version` says; -1 for one that does not count it (of inference mode). */
static int64_t tensor_version(const Object *tensor) {
    const char *counter = *(char *const *)(*(char *const *)handle_of(tensor) + VERSION_COUNTER);
    return counter == NULL ? -1 : (int64_t) * (const uint32_t *)(counter + VERSION);
}

/* Whether an attribute is True. */
static int is_true(Object *object, Object *name) {
    Object *value = hot_api.get_attribute(object, name);
    if (value) hot_api.release(value); /* compared only: it is a singleton */
    else settle_error();
    return value == hot_api.yes;
}

/* Call with no arguments or some; NULL, and no error, where it raises, or one before has raised for the script. */
static Object *call_quietly(Object *function, Object *const *given, size_t count) {
    if (is_struck()) return NULL;
    Object *result = hot_api.call(function, given, count, NULL);
    if (result == NULL) settle_error();
    return result;
}

/* Whether parameters are measured too. */
INLINE int is_norms_step(void) { return hot_loop.norms_every > 0 && hot.step % hot_loop.norms_every == 0; }

/* Whether what modules return is measured too. */
INLINE int is_observed_step(int64_t step) { return hot_loop.observed_every > 0 && step % hot_loop.observed_every == 0; }

/* Call, and let go of the result; whether it was True. */
static int is_answered(Object *function, Object *const *given, size_t count) {
    Object *result = call_quietly(function, given, count);
    if (result) hot_api.release(result); /* compared only: it is a singleton */
    return result == hot_api.yes;
}

/* Whether the update of a step is looked at. */
INLINE int is_ratios_step(int64_t step) { return hot_loop.ratios_every > 0 && step % hot_loop.ratios_every == 0; }

/* Whether a tensor lies where steps of this loop may have theirs. */
INLINE int is_known_device(int32_t device) { return device == ON_CPU || (device == ON_CUDA && hot_loop.finish); }

#include "hot_gradients.h"
#include "hot_ring.h"
#include "hot_updates.h"

/* Forget the inputs that are kept of a step. */
static void drop_inputs(KeptInputs *inputs) {
    drop(&inputs->args);
    drop(&inputs->kwargs);
    drop(&inputs->random);
    inputs->step = -1;
}

static void drop_call(HotCall *call) {
    for (int64_t i = 0; i < call->output_count; i++) {
        drop(&call->outputs[i].held);
        drop(&call->outputs[i].number);
        drop(&call->outputs[i].gradient);
        drop(&call->outputs[i].life);
    }
    drop(&call->boundary);
    drop(&call->loss);
    drop(&call->unscaled);
    drop(&call->noted);
    drop(&call->task);
    call->output_count = 0;
    call->inputs = NULL;
}

static void drop_step(void) {
    /* One more than have ended: of the newest, a backward may not have. */
    for (int64_t i = 0; i <= hot.micro_step && i < MAX_MICRO_STEPS; i++) drop_call(&hot_calls[i]);
    drop(&hot.unscaled);
    drop(&hot.scaled);
    hot.micro_step = hot.is_marked = hot.has_logged = 0;
    hot.before_backward_ns = 0;
    hot.state = IDLE;
}

/* Let go of everything that is held of the step under way and of those before it. */
EXPORT void nanscope_hot_forget(void) {
    drop_step();
    for (int i = 0; i < KEPT_STEPS * MAX_MICRO_STEPS; i++) drop_inputs(&hot_kept[i]);
}

/* Whether the marked parameter lies where it lay. */
static int finds_marked(int64_t *version) {
    void *data = NULL;
    if (hot_api.data_ptr(handle_of(hot_loop.marked), &data) || data != hot_loop.marked_data) return 0;
    *version = tensor_version(hot_loop.marked);
    return 1;
}

/* Remember what the marked parameter is after a backward; 0 where it lies elsewhere. */
static int mark_parameter(void) {
    if (hot_loop.marked == NULL) return 1;
    if (!finds_marked(&hot.mark_version)) return 0;
    memcpy(hot.mark, hot_loop.marked_data, (size_t)hot_loop.marked_bytes);
    hot.is_marked = 1;
    return 1;
}

/* Whether parameters were updated since the newest backward of the step, though nobody has told of it. */
static int is_updated_unseen(void) {
    int64_t version = 0;
    if (!hot.is_marked) return 0;
    return !finds_marked(&version) || version != hot.mark_version ||
           memcmp(hot.mark, hot_loop.marked_data, (size_t)hot_loop.marked_bytes) != 0;
}

#include "hot_forward.h"
#include "hot_late.h"
#include "hot_backward.h"
#include "hot_finish.h"

/* PyMethodDef */
typedef struct {
    const char *name;
    void *function;
    int flags;
    const char *text;
} Method;

enum { NO_ARGUMENTS = 4, ONE_ARGUMENT = 8, FAST_CALL = 0x80 };

RAISING_FAST(hot_begin_forward)
RAISING(hot_end_forward)
RAISING(hot_receive)
RAISING_FAST(hot_after_scale)
RAISING_FAST(hot_after_scaler_step)
RAISING_FAST(hot_begin_backward)
RAISING(hot_end_backward)
RAISING(hot_before_clip)
RAISING(hot_before_clearing)
RAISING_FAST(hot_before_step)
RAISING(hot_after_step)
RAISING_FAST(hot_count_step)
RAISING(hot_pass_step)

static Method hot_methods[] = {
    {"begin_forward", (void *)hot_begin_forward_or_raise, FAST_CALL, NULL},
    {"end_forward", (void *)hot_end_forward_or_raise, ONE_ARGUMENT, NULL},
    {"receive", (void *)hot_receive_or_raise, ONE_ARGUMENT, NULL},
    {"after_scale", (void *)hot_after_scale_or_raise, FAST_CALL, NULL},
    {"after_scaler_step", (void *)hot_after_scaler_step_or_raise, FAST_CALL, NULL},
    {"begin_backward", (void *)hot_begin_backward_or_raise, FAST_CALL, NULL},
    {"end_backward", (void *)hot_end_backward_or_raise, NO_ARGUMENTS, NULL},
    {"before_clip", (void *)hot_before_clip_or_raise, NO_ARGUMENTS, NULL},
    {"before_clearing", (void *)hot_before_clearing_or_raise, ONE_ARGUMENT, NULL},
    {"before_step", (void *)hot_before_step_or_raise, FAST_CALL, NULL},
    {"after_step", (void *)hot_after_step_or_raise, ONE_ARGUMENT, NULL},
    {"count_step", (void *)hot_count_step_or_raise, FAST_CALL, NULL},
    {"pass_step", (void *)hot_pass_step_or_raise, ONE_ARGUMENT, NULL},
    {NULL, NULL, 0, NULL},
};

EXPORT Method *nanscope_hot_methods(void) { return hot_methods; }

static Method death_methods[] = {{"at_death", (void *)call_at_death, ONE_ARGUMENT, NULL}, {NULL, NULL, 0, NULL}};

EXPORT Method *nanscope_death_methods(void) { return death_methods; }

EXPORT void nanscope_hot_use(const HotApi *api) { hot_api = *api; }

/* Follow this loop from now on; 0 where there is no memory for it. Everything that it names stays alive until the
 * next call, or `nanscope_hot_forget`. */
EXPORT int nanscope_hot_follow(const HotLoop *loop) {
    nanscope_hot_forget();
    hot_loop = *loop;
    known_stack = 0;
    has_known_keys = 0;
    followed_at = ++times_followed;
    updates.step = -1;
    return make_room(loop->parameter_count);
}
