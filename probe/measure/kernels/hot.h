/* A healthy step of an armed training loop: a part of kernel.c, called by Python with its lock held.
 *
 * Five callbacks (forward, backward and the optimizer's step, before and after) keep references alone and, before
 * the update, measure all gradients and append one RAW record to the ring. Whatever is not as it was learned makes
 * a callback answer "no" before it has done anything: from there on the step goes the slow way, in Python.
 *
 * Neither Python's nor torch's headers are needed: both are reached through addresses that hot_binding.py looks up
 * and checks. One training of a process can be armed at a time. `hot_forward.h` and `hot_backward.h` follow the
 * calls, `hot_gradients.h` finds the gradients, `hot_ring.h` writes records, `hot_updates.h` looks at updates. Where
 * gradients lie on a device, or their verdict may be late, Python measures them instead: `hot_late.h`.
 */
#include <time.h>

typedef void Object; /* a Python object */

enum { MAX_ARGUMENTS = 16, MAX_OUTPUTS = 8, MAX_MICRO_STEPS = 32, MAX_GROUPS = 32, MAX_AMBIENT = 8, MAX_SCALARS = 8 };
enum { KEPT_STEPS = 8, SITE_FRAMES = 3, WRAPPING_FRAMES = 4 };
/* Up to so many bytes an output is held itself, as held_outputs.py does; above, by a weak reference. */
enum { SMALL_OUTPUT = 1 << 18 };
/* So many frozen parameters are looked at in a step. */
enum { LOOKED_AT = 64 };
/* torch's numbers of devices. */
enum { ON_CPU = 0, ON_CUDA = 1 };
/* So many bytes of one parameter are compared, as unseen_updates.py does. */
enum { MARK_BYTES = 448 };
/* Elements above which a pass, which takes a millisecond then, gives Python's lock away: to have it back may take five. */
enum { LONG_PASS = 1 << 23 };

/* Mirrored by hot_binding.py: functions of Python and torch, and objects that are compared with. */
typedef struct {
    Object *(*tuple_item)(Object *, ptrdiff_t);
    ptrdiff_t (*tuple_size)(Object *);
    Object *(*list_item)(Object *, ptrdiff_t);
    ptrdiff_t (*list_size)(Object *);
    Object *(*dict_item)(Object *, Object *);
    ptrdiff_t (*dict_size)(Object *);
    int (*dict_next)(Object *, ptrdiff_t *, Object **, Object **);
    Object *(*dict_copy)(Object *);
    Object *(*list_slice)(Object *, ptrdiff_t, ptrdiff_t);
    int (*list_set)(Object *, ptrdiff_t, Object *);
    Object *(*new_tuple)(ptrdiff_t);
    int (*tuple_set)(Object *, ptrdiff_t, Object *);
    Object *(*call)(Object *, Object *const *, size_t, Object *);
    int (*dict_set)(Object *, Object *, Object *);
    Object *(*get_attribute)(Object *, Object *);
    int (*set_attribute)(Object *, Object *, Object *);
    Object *(*weak_reference)(Object *, Object *);
    long long (*as_int)(Object *);
    double (*as_float)(Object *);
    void (*keep)(Object *);
    void (*release)(Object *);
    void (*clear_error)(void);
    Object *(*error)(void);
    unsigned long (*thread)(void);
    void *(*unlock)(void);
    void (*lock)(void *);
    Object *(*frame)(void);              /* PyEval_GetFrame */
    Object *(*caller)(Object *);         /* PyFrame_GetBack */
    Object *(*code)(Object *);           /* PyFrame_GetCode */
    int (*instruction)(Object *);        /* PyFrame_GetLasti */
    Object *none, *yes, *no;
    Object *tensor_type, *float_type, *tuple_type, *list_type, *dict_type;
    Object *atoms[6]; /* types of arguments that need no care: NoneType, bool, int, float, str, bytes */
    Object *name_version, *name_requires_grad, *name_grad_fn, *name_hooks, *name_register, *name_number, *name_lr,
        *name_training, *name_groups, *name_parameters, *name_synchronises;
    void *const *(*grad)(const void *); /* const at::Tensor& c10::TensorImpl::grad() const */
    int32_t (*data_ptr)(void *, void **);
    int32_t (*numel)(void *, int64_t *);
    int32_t (*dtype)(void *, int32_t *);
    int32_t (*device_type)(void *, int32_t *);
    int32_t (*layout)(void *, int32_t *);
    int32_t (*is_contiguous)(void *, uint8_t *);
    int32_t (*dim)(void *, int64_t *);
    int32_t (*sizes)(void *, int64_t **);
    int32_t (*strides)(void *, int64_t **);
    int32_t (*storage_size)(void *, int64_t *);
    int32_t (*new_handle)(void *, void **);
    int32_t (*delete_handle)(void *);
    uint8_t (*grad_is_enabled)(void);
    uint8_t (*inference_is_enabled)(void);
    const void *undefined; /* c10::UndefinedTensorImpl::_singleton */
    int64_t tensor_offset; /* of at::Tensor in a Python tensor */
    int64_t type_offset;   /* of the type in any Python object */
} HotApi;

/* Where the step under way stands. */
enum { IDLE, IN_FORWARD, AFTER_FORWARD, IN_BACKWARD, AFTER_BACKWARD, CLIPPED, IN_UPDATE };

/* Where a call comes from: its innermost frames outside of the wrapper. Code is compared with, not kept. */
typedef struct {
    Object *code[SITE_FRAMES];
    int64_t instruction[SITE_FRAMES];
} CallSite;

/* What was learned of one forward and its backward, a micro-step; mirrored by hot_binding.py. */
typedef struct {
    CallSite forward_site, backward_site;
    Object *loss_node;   /* type of the loss's grad_fn */
    Object *synchronises; /* whether DistributedDataParallel averages gradients after it: True or False */
    int64_t argument_count, keyword_count, tensor_count, output_count;
    int64_t looks_at_loss; /* whether the loss's graph says more than its type */
} HotMicroStep;

/* What was learned of the loop, and where records go; mirrored by hot_binding.py. */
typedef struct {
    Object *root, *optimizer, *scaler; /* compared with: they may be gone */
    Object *hook_table;     /* class of the tables of hooks: a dictionary that can be weakly referred to */
    Object *hook_key;       /* its key among the hooks of a tensor */
    Object *number_of_next; /* next sequence number of autograd */
    Object *task;           /* number of the backward under way */
    Object *random_state;   /* reads the generator, or NULL: the forward draws nothing */
    Object *glance;         /* looks at the inputs where parameters are measured, or NULL */
    Object *observe;        /* (module, args, kwargs): has the calls of a sampled forward's modules measured */
    Object *end_observation; /* (output): it has returned */
    Object *collect;        /* takes what they have told; True where the step goes on here */
    Object *add_more;       /* adds it, and what was logged since the backward, to the step's record */
    Object *on_news;        /* called at the end of a backward where `news` is set; True: again at the next one */
    Object *find_outputs;   /* lists the tensors in what a forward returned */
    Object *look_at_loss;   /* (loss, before scaling, boundary, numbers...): (divisor, what it has noted) */
    Object *scalars;        /* further scalars of the step, or NULL */
    Object *take_over;      /* has the rest of the step go the slow way */
    Object *replica;        /* the DistributedDataParallel round the model, or NULL */
    Object *measure;        /* starts to measure gradients before they are clipped, where C does not; or NULL */
    Object *finish;         /* measures and finishes a step, where C does not; or NULL. See `hot_late.h` */
    Object *receive[MAX_MICRO_STEPS * MAX_OUTPUTS]; /* the hooks that are given dL/d(output) */
    Object *ambient[MAX_AMBIENT], *ambient_argument[MAX_AMBIENT], *ambient_value[MAX_AMBIENT];
    Object *groups[MAX_GROUPS];
    int64_t group_sizes[MAX_GROUPS];
    Object *const *parameters, *const *frozen;
    int64_t ambient_count, group_count, rate_count, scalar_count, parameter_count, frozen_count;
    int64_t micro_steps, clips, is_distributed;
    int64_t reads_losses; /* whether a loss can be read without waiting for it */
    int64_t input_limit_bytes, output_limit_bytes;
    HotMicroStep micro[MAX_MICRO_STEPS];
    unsigned long thread;
    uint8_t *ring; /* its header, then its data; see ring_format.py */
    int64_t template_id;
    int64_t norms_every, ratios_every, observed_every;
    int64_t glanced_elements; /* where an input has more, `glance` does nothing */
    void *const *copies;       /* for each parameter where it can be copied to, or NULL */
    const int64_t *copy_bytes; /* for each the room there */
    Object *marked; /* the parameter that tells of updates which no hook tells of, or NULL */
    void *marked_data; /* where it lies */
    int64_t marked_bytes;
} HotLoop;

/* What one forward was called with; outlives its step. */
typedef struct {
    Object *args, *kwargs, *random;
    int64_t step, versions[MAX_ARGUMENTS];
} KeptInputs;

/* One tensor that a forward returned. */
typedef struct {
    Object *held; /* itself, or weak */
    Object *number, *gradient;
    Object *life; /* weak: its hooks, which live as long as the graph */
    int64_t version, is_weak, is_droppable;
} HotOutput;

/* One forward of the step under way, and its backward; mirrored by hot_binding.py. */
typedef struct {
    KeptInputs *inputs;
    Object *boundary, *loss, *unscaled, *noted, *task;
    int64_t samples, bytes, output_count;
    double value, raw, divisor;
    HotOutput outputs[MAX_OUTPUTS];
} HotCall;

/* Mirrored by hot_binding.py. */
typedef struct {
    int64_t armed, state, step, slow_at, attention, news, micro_step;
    int64_t beats, steps, own_ns, last_end_ns, step_own_ns, refused, refused_at;
    int64_t input_bytes, free_since_ns, before_backward_ns, frozen_at, samples;
    int64_t has_logged; /* whether `add_more` has something to add that was logged in the middle of the step */
    double total_norm, before_clip, after_clip;
    double accumulation; /* what losses were divided by when that was the number of micro-steps */
    Object *unscaled, *scaled; /* what a GradScaler was given for the backward to come, and what it made of it */
    Object *sink; /* is given dL/d(output) once the slow way has taken the step over; borrowed */
    int64_t is_marked, mark_version; /* what the marked parameter was after the newest backward of the step */
    uint8_t mark[MARK_BYTES];
} HotState;

static HotApi hot_api;
static HotLoop hot_loop;
static HotState hot;
static int64_t nested_updates; /* calls of `step` within the one that is under way: those of `super().step()` */
static KeptInputs hot_kept[KEPT_STEPS * MAX_MICRO_STEPS];
static HotCall hot_calls[MAX_MICRO_STEPS];
static struct {
    int64_t room;
    void **impls;
    const void **gradients;
    uint64_t *pointers;
    int64_t *sizes;
    uint8_t *kinds;
    double *block, *norms;
} hot_memory;

EXPORT HotState *nanscope_hot_state(void) { return &hot; }
EXPORT KeptInputs *nanscope_hot_kept(void) { return hot_kept; }
EXPORT HotCall *nanscope_hot_calls(void) { return hot_calls; }
EXPORT double *nanscope_hot_block(void) { return hot_memory.block; }
EXPORT uint8_t *nanscope_hot_kinds(void) { return hot_memory.kinds; }
EXPORT int64_t nanscope_hot_sizes(int which) {
    const int64_t sizes[] = {sizeof(HotApi), sizeof(HotLoop), sizeof(HotState), sizeof(KeptInputs), sizeof(HotCall)};
    return sizes[which];
}

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

/* An attribute that is a whole number; -1 where there is none. */
static int64_t number_of(Object *object, Object *name) {
    Object *value = hot_api.get_attribute(object, name);
    if (value == NULL) {
        hot_api.clear_error();
        return -1;
    }
    int64_t number = hot_api.as_int(value);
    hot_api.release(value);
    if (number == -1 && hot_api.error()) hot_api.clear_error();
    return number;
}

/* Whether an attribute is True. */
static int is_true(Object *object, Object *name) {
    Object *value = hot_api.get_attribute(object, name);
    if (value) hot_api.release(value); /* compared only: it is a singleton */
    else hot_api.clear_error();
    return value == hot_api.yes;
}

/* Call with no arguments or some; NULL, and no error, where it raises. */
static Object *call_quietly(Object *function, Object *const *given, size_t count) {
    Object *result = hot_api.call(function, given, count, NULL);
    if (result == NULL) hot_api.clear_error();
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
    *version = number_of(hot_loop.marked, hot_api.name_version);
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

/* ------------------------------------------------------------------------------------------------ update */

/* Measure all gradients; 0 where some cannot be read by pointer, or are not finite. */
static int measure_gradients(void) {
    Job job = {.count = hot_loop.parameter_count, .pointers = hot_memory.pointers, .sizes = hot_memory.sizes,
               .kinds = hot_memory.kinds, .block = hot_memory.block};
    if (!find_gradients(&job)) return 0;
    measure_held(&job);
    hot.total_norm = job.missing < job.count ? job.total_norm : NAN;
    return job.nonfinite == 0;
}

/* measure_before_clip(): the gradients as they are before torch clips them; False for the slow way. */
static Object *hot_before_clip(Object *self, Object *nothing) {
    (void)self, (void)nothing;
    if (!hot.armed || hot.state != AFTER_BACKWARD || hot.micro_step != hot_loop.micro_steps || !hot_loop.clips)
        return hot.armed && hot.state == CLIPPED ? answer(1) : refuse();
    int64_t started = now_ns();
    const int is_measured = hot_loop.measure ? ask(hot_loop.measure, NULL, 0) : measure_gradients();
    if (is_measured < 0) return NULL;
    if (!is_measured) return refuse();
    hot.before_clip = hot_loop.measure ? NAN : hot.total_norm;
    hot.after_clip = NAN;
    hot.state = CLIPPED;
    hot.step_own_ns += now_ns() - started;
    return answer(1);
}

static int has_same_size(int64_t at) {
    Object *parameters = hot_api.dict_item(hot_loop.groups[at], hot_api.name_parameters);
    if (parameters == NULL || type_of(parameters) != hot_api.list_type) return 0;
    return hot_api.list_size(parameters) == hot_loop.group_sizes[at];
}

/* Whether a parameter that was frozen is not any more; of many, some at each step. */
static int has_thawed(void) {
    const int64_t count = hot_loop.frozen_count < LOOKED_AT ? hot_loop.frozen_count : LOOKED_AT;
    for (int64_t i = 0; i < count; i++) {
        hot.frozen_at = (hot.frozen_at + 1) % hot_loop.frozen_count;
        if (is_true(hot_loop.frozen[hot.frozen_at], hot_api.name_requires_grad)) return 1;
    }
    return 0;
}

/* Whether an optimizer still has the groups that were learned: loading a state gives it others. */
static int has_same_groups(Object *optimizer) {
    Object *groups = hot_api.get_attribute(optimizer, hot_api.name_groups);
    if (groups == NULL) {
        hot_api.clear_error();
        return 0;
    }
    int is_same = type_of(groups) == hot_api.list_type && hot_api.list_size(groups) == hot_loop.group_count;
    for (int64_t i = 0; is_same && i < hot_loop.group_count; i++)
        is_same = hot_api.list_item(groups, i) == hot_loop.groups[i] && has_same_size(i);
    hot_api.release(groups);
    return is_same;
}

/* The learning rate of every group; 0 where one is no float. */
static int read_rates(double *rates) {
    for (int64_t i = 0; i < hot_loop.group_count; i++) {
        Object *rate = hot_api.dict_item(hot_loop.groups[i], hot_api.name_lr);
        if (rate == NULL || type_of(rate) != hot_api.float_type) return 0;
        rates[i] = hot_api.as_float(rate);
        if (hot_loop.rate_count == 1 && rates[i] != rates[0]) return 0;
    }
    return 1;
}

/* before_step(optimizer, args, kwargs): False where the slow way has to finish the step; None where it is no
 * optimizer of the model's. */
static Object *hot_before_step(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || count != 3) return answer(0);
    if (given[0] != hot_loop.optimizer || hot_api.thread() != hot_loop.thread) return pass_on();
    if (hot.state == IN_UPDATE) {
        nested_updates++;
        return answer(1);
    }
    int64_t started = now_ns();
    double rates[MAX_GROUPS];
    int is_clipped = hot.state == CLIPPED;
    if (hot.state != AFTER_BACKWARD && !is_clipped) return refuse();
    if (hot.micro_step != hot_loop.micro_steps || is_clipped != (int)hot_loop.clips) return refuse();
    if (hot_api.tuple_size(given[1]) != 1 || hot_api.dict_size(given[2]) != 0) return refuse();
    if (!has_same_groups(given[0]) || has_thawed()) return refuse();
    if (hot_loop.finish) return finish_late(started);
    if (!read_rates(rates)) return refuse();
    if (!is_clipped && !measure_gradients()) return refuse();
    const int has_ratios = is_ratios_step(hot.step);
    if ((is_norms_step() || has_ratios) && !measure_parameters()) return refuse();
    const int is_observed = is_observed_step(hot.step);
    if (is_observed && (!is_answered(hot_loop.collect, NULL, 0) || !hot.armed)) return refuse();
    if (!append_step(rates, started)) return refuse();
    if (has_ratios || is_observed || hot.has_logged) {
        started = now_ns();
        if (is_observed || hot.has_logged) is_answered(hot_loop.add_more, NULL, 0);
        if (has_ratios) copy_parameters(hot.step - 1);
        hot.step_own_ns += now_ns() - started; /* a part of the next step, as in the slow way */
    }
    hot.state = IN_UPDATE;
    nested_updates = 0;
    hot.beats++;
    return answer(1);
}

/* after_step(optimizer): the step has ended. */
static Object *hot_after_step(Object *self, Object *optimizer) {
    (void)self;
    if (hot.state != IN_UPDATE) return answer(0);
    if (optimizer != hot_loop.optimizer) return pass_on();
    if (nested_updates > 0) {
        nested_updates--;
        return answer(1);
    }
    if (hot_loop.finish) nanscope_hot_forget(); /* inputs too: Python keeps those of finished steps */
    else drop_step();
    if (updates.step >= 0) {
        const int64_t started = now_ns();
        measure_update();
        hot.step_own_ns += now_ns() - started;
    }
    hot.beats++;
    return answer(1);
}

/* after_scaler_step(scaler, optimizer): whether C has followed the update that a GradScaler was to make. */
static Object *hot_after_scaler_step(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    const int is_known = count == 2 && given[0] == hot_loop.scaler && given[1] == hot_loop.optimizer;
    return answer(hot.armed && is_known && hot.state == IDLE && hot_api.thread() == hot_loop.thread);
}

/* count_step(optimizer, args, kwargs): all that level `off` does: counts steps of the watched model. False where
 * somebody wants to look, None where it is no optimizer of the model's. */
static Object *hot_count_step(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (count != 3 || given[0] != hot_loop.optimizer || hot_api.thread() != hot_loop.thread) return pass_on();
    if (hot.attention || hot_api.tuple_size(given[1]) != 1 || hot_api.dict_size(given[2])) return answer(0);
    hot.step++;
    hot.steps++;
    hot.beats++;
    return answer(1);
}

/* pass_step(optimizer): the end of a step that is only counted. */
static Object *hot_pass_step(Object *self, Object *optimizer) {
    (void)self;
    return answer(optimizer == hot_loop.optimizer);
}

/* PyMethodDef */
typedef struct {
    const char *name;
    void *function;
    int flags;
    const char *text;
} Method;

enum { NO_ARGUMENTS = 4, ONE_ARGUMENT = 8, FAST_CALL = 0x80 };

static Method hot_methods[] = {
    {"begin_forward", (void *)hot_begin_forward, FAST_CALL, NULL},
    {"end_forward", (void *)hot_end_forward, ONE_ARGUMENT, NULL},
    {"receive", (void *)hot_receive, ONE_ARGUMENT, NULL},
    {"after_scale", (void *)hot_after_scale, FAST_CALL, NULL},
    {"after_scaler_step", (void *)hot_after_scaler_step, FAST_CALL, NULL},
    {"begin_backward", (void *)hot_begin_backward, FAST_CALL, NULL},
    {"end_backward", (void *)hot_end_backward, NO_ARGUMENTS, NULL},
    {"before_clip", (void *)hot_before_clip, NO_ARGUMENTS, NULL},
    {"before_step", (void *)hot_before_step, FAST_CALL, NULL},
    {"after_step", (void *)hot_after_step, ONE_ARGUMENT, NULL},
    {"count_step", (void *)hot_count_step, FAST_CALL, NULL},
    {"pass_step", (void *)hot_pass_step, ONE_ARGUMENT, NULL},
    {NULL, NULL, 0, NULL},
};

EXPORT Method *nanscope_hot_methods(void) { return hot_methods; }

EXPORT void nanscope_hot_use(const HotApi *api) { hot_api = *api; }

/* Follow this loop from now on; 0 where there is no memory for it. Everything that it names stays alive until the
 * next call, or `nanscope_hot_forget`. */
EXPORT int nanscope_hot_follow(const HotLoop *loop) {
    nanscope_hot_forget();
    hot_loop = *loop;
    updates.step = -1;
    return make_room(loop->parameter_count);
}
