/* A healthy step of an armed training loop: a part of kernel.c, called by Python with its lock held.
 *
 * Five callbacks (forward, backward and the optimizer's step, before and after) keep references alone and, before
 * the update, measure all gradients and append one RAW record to the ring. Whatever is not as it was learned makes
 * a callback answer "no" before it has done anything: from there on the step goes the slow way, in Python.
 *
 * Neither Python's nor torch's headers are needed: both are reached through addresses that hot_binding.py looks up
 * and checks. One training of a process can be armed at a time. `hot_gradients.h` finds the gradients,
 * `hot_ring.h` writes records, `hot_updates.h` looks at updates.
 */
#include <time.h>

typedef void Object; /* a Python object */

enum { MAX_ARGUMENTS = 16, MAX_GROUPS = 32, MAX_AMBIENT = 8, KEPT_STEPS = 8, SITE_FRAMES = 3, WRAPPING_FRAMES = 4 };
/* Up to so many bytes an output is held itself, as held_outputs.py does; above, by a weak reference. */
enum { SMALL_OUTPUT = 1 << 18 };
/* Elements above which a pass gives Python's lock away. */
enum { LONG_PASS = 1 << 22 };

/* Mirrored by hot_binding.py: functions of Python and torch, and objects that are compared with. */
typedef struct {
    Object *(*tuple_item)(Object *, ptrdiff_t);
    ptrdiff_t (*tuple_size)(Object *);
    Object *(*list_item)(Object *, ptrdiff_t);
    ptrdiff_t (*list_size)(Object *);
    Object *(*dict_item)(Object *, Object *);
    ptrdiff_t (*dict_size)(Object *);
    int (*dict_next)(Object *, ptrdiff_t *, Object **, Object **);
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
    Object *tensor_type, *float_type, *tuple_type, *list_type;
    Object *atoms[6]; /* types of arguments that need no care: NoneType, bool, int, float, str, bytes */
    Object *name_version, *name_requires_grad, *name_grad_fn, *name_hooks, *name_register, *name_number, *name_lr,
        *name_training, *name_groups;
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

/* What was learned of the loop, and where records go; mirrored by hot_binding.py. */
typedef struct {
    Object *root, *optimizer; /* compared with: they may be gone */
    Object *receive;        /* the hook that is given dL/d(output) */
    Object *hook_table;     /* class of the tables of hooks: a dictionary that can be weakly referred to */
    Object *hook_key;       /* its key among the hooks of a tensor */
    Object *loss_node;      /* type of the loss's grad_fn */
    Object *number_of_next; /* next sequence number of autograd */
    Object *random_state;   /* reads the generator, or NULL: the forward draws nothing */
    Object *glance;         /* looks at the inputs where parameters are measured, or NULL */
    Object *on_news;        /* called at the end of a backward where `news` is set; True: again at the next one */
    Object *ambient[MAX_AMBIENT], *ambient_argument[MAX_AMBIENT], *ambient_value[MAX_AMBIENT];
    Object *groups[MAX_GROUPS];
    Object *const *parameters;
    int64_t ambient_count, group_count, rate_count, parameter_count;
    int64_t argument_count, keyword_count, tensor_count;
    int64_t micro_steps, clips;
    int64_t input_limit_bytes, output_limit_bytes;
    CallSite forward_site, backward_site;
    unsigned long thread;
    uint8_t *ring; /* its header, then its data; see ring_format.py */
    int64_t template_id;
    int64_t norms_every, ratios_every;
    void *const *copies; /* for each parameter where it can be copied to, or NULL */
    double loss_factor; /* what the sum of the losses is multiplied by for the step's loss */
} HotLoop;

typedef struct {
    Object *args, *kwargs, *random;
    int64_t step, versions[MAX_ARGUMENTS];
} KeptInputs;

/* Mirrored by hot_binding.py. */
typedef struct {
    int64_t armed, state, step, slow_at, attention, news, micro_step;
    int64_t beats, steps, own_ns, last_end_ns, step_own_ns, refused, refused_at;
    int64_t boundary, output_number, output_version, samples, is_weak;
    double losses, total_norm, before_clip, after_clip;
    Object *output, *loss, *output_gradient;
    Object *life; /* weak: the output's hooks, which live as long as the graph */
    Object *sink; /* is given dL/d(output) once the slow way has taken the step over; borrowed */
    KeptInputs *inputs;
} HotState;

static HotApi hot_api;
static HotLoop hot_loop;
static HotState hot;
static KeptInputs hot_kept[KEPT_STEPS];
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
EXPORT int64_t nanscope_hot_sizes(int which) {
    return which == 0 ? sizeof(HotApi) : which == 1 ? sizeof(HotLoop) : which == 2 ? sizeof(HotState) : sizeof(KeptInputs);
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

/* Whether parameters are measured too. */
INLINE int is_norms_step(void) { return hot_loop.norms_every > 0 && hot.step % hot_loop.norms_every == 0; }

/* Whether the update of a step is looked at. */
INLINE int is_ratios_step(int64_t step) { return hot_loop.ratios_every > 0 && step % hot_loop.ratios_every == 0; }

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

static void drop_step(void) {
    drop(&hot.output);
    drop(&hot.loss);
    drop(&hot.output_gradient);
    drop(&hot.life);
    hot.micro_step = 0;
    hot.losses = 0.0;
    hot.state = IDLE;
}

/* Let go of everything that is held of the step under way and of those before it. */
EXPORT void nanscope_hot_forget(void) {
    drop_step();
    for (int i = 0; i < KEPT_STEPS; i++) drop_inputs(&hot_kept[i]);
    hot.inputs = NULL;
}

/* ----------------------------------------------------------------------------------------------- forward */

static int is_atom(const Object *object) {
    const Object *type = type_of(object);
    for (int i = 0; i < 6; i++)
        if (type == hot_api.atoms[i]) return 1;
    return 0;
}

/* Note one argument; 0 where it is of a kind that the slow way has to look at. */
static int note_argument(Object *value, KeptInputs *inputs, int64_t *tensors, int64_t *bytes) {
    if (type_of(value) != hot_api.tensor_type) return is_atom(value);
    if (*tensors == MAX_ARGUMENTS) return 0;
    void *tensor = handle_of(value);
    int32_t layout = -1, device = -1;
    int64_t storage = 0;
    if (hot_api.layout(tensor, &layout) || layout != 0) return 0;
    if (hot_api.device_type(tensor, &device) || device != 0) return 0;
    if (hot_api.storage_size(tensor, &storage)) return 0;
    Object *needs_gradient = hot_api.get_attribute(value, hot_api.name_requires_grad);
    if (needs_gradient == NULL) hot_api.clear_error();
    else hot_api.release(needs_gradient);
    int64_t version = number_of(value, hot_api.name_version);
    if (needs_gradient != hot_api.no || version < 0) return 0;
    if (*tensors == 0) {
        int64_t dims = 0, *sizes = NULL;
        hot.samples = 0;
        if (!hot_api.dim(tensor, &dims) && dims > 0 && !hot_api.sizes(tensor, &sizes)) hot.samples = sizes[0];
    }
    inputs->versions[(*tensors)++] = version;
    *bytes += storage;
    return 1;
}

static int note_arguments(Object *args, Object *kwargs, KeptInputs *inputs) {
    int64_t tensors = 0, bytes = 0;
    ptrdiff_t at = 0;
    Object *key, *value;
    if (type_of(args) != hot_api.tuple_type || hot_api.tuple_size(args) != hot_loop.argument_count) return 0;
    if (hot_api.dict_size(kwargs) != hot_loop.keyword_count) return 0;
    for (int64_t i = 0; i < hot_loop.argument_count; i++)
        if (!note_argument(hot_api.tuple_item(args, i), inputs, &tensors, &bytes)) return 0;
    while (hot_api.dict_next(kwargs, &at, &key, &value))
        if (!note_argument(value, inputs, &tensors, &bytes)) return 0;
    return tensors == hot_loop.tensor_count && bytes <= hot_loop.input_limit_bytes;
}

/* Go one frame out; NULL behind the outermost. Takes the reference to the frame. */
static Object *step_out(Object *frame) {
    Object *outer = hot_api.caller(frame);
    hot_api.release(frame);
    return outer;
}

static int is_at(Object *frame, Object *code, int64_t instruction) {
    Object *own = hot_api.code(frame);
    hot_api.release(own); /* compared only: the frame keeps it */
    return own == code && (instruction < 0 || hot_api.instruction(frame) == instruction);
}

/* Whether the wrapper that asks was called from the lines that were learned: else a replay would name others. */
static int is_called_from(const CallSite *site) {
    Object *frame = kept(hot_api.frame());
    /* Between the wrapper and the script there may be frames of ours. */
    for (int i = 0; i < WRAPPING_FRAMES && frame && !is_at(frame, site->code[0], -1); i++) frame = step_out(frame);
    int is_same = 1;
    for (int i = 0; i < SITE_FRAMES && is_same && site->code[i]; i++) {
        is_same = frame && is_at(frame, site->code[i], site->instruction[i]);
        if (frame) frame = step_out(frame);
    }
    if (frame) hot_api.release(frame);
    return is_same;
}

/* Whether autocast, tracing, dynamo and torch.func are as they were learned. */
static int is_ambient_as_learned(void) {
    for (int64_t i = 0; i < hot_loop.ambient_count; i++) {
        Object *argument = hot_loop.ambient_argument[i];
        Object *value = hot_api.call(hot_loop.ambient[i], &argument, argument != NULL, NULL);
        if (value == NULL) {
            hot_api.clear_error();
            return 0;
        }
        hot_api.release(value); /* compared only: it is a singleton */
        if (value != hot_loop.ambient_value[i]) return 0;
    }
    return hot_api.grad_is_enabled() && !hot_api.inference_is_enabled();
}

/* begin_forward(module, args, kwargs): True, the call is followed from here; None, it is none of a step's; False,
 * the slow way is to be gone. */
static Object *hot_begin_forward(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || given[0] != hot_loop.root || count != 3) return answer(0);
    int64_t started = now_ns();
    if (hot_api.thread() != hot_loop.thread) return answer(0);
    if (hot.state == IN_FORWARD || hot.state == IN_BACKWARD) return pass_on();
    if (hot.state == IN_UPDATE) { /* the update has raised */
        drop_step();
        updates.step = -1;
    }
    if (hot.state != IDLE && !(hot.state == AFTER_BACKWARD && hot.micro_step < hot_loop.micro_steps)) return refuse();
    if (hot.state == IDLE && (hot.attention || hot.step >= hot.slow_at)) return refuse();
    if (!is_true(given[0], hot_api.name_training)) return refuse();
    if (!is_called_from(&hot_loop.forward_site) || !is_ambient_as_learned()) return refuse();
    KeptInputs noted = {given[1], given[2], NULL, hot.step, {0}};
    if (!note_arguments(given[1], given[2], &noted)) return refuse();
    if (hot_loop.random_state && (noted.random = hot_api.call(hot_loop.random_state, NULL, 0, NULL)) == NULL) {
        hot_api.clear_error();
        return refuse();
    }
    KeptInputs *place = &hot_kept[hot.step % KEPT_STEPS];
    kept(given[1]);
    kept(given[2]);
    drop_inputs(place);
    *place = noted;
    hot.inputs = place;
    if (is_norms_step() && hot_loop.glance) {
        Object *seen = hot_api.call(hot_loop.glance, given, 3, NULL);
        if (seen) hot_api.release(seen);
        else hot_api.clear_error();
    }
    hot.state = IN_FORWARD;
    hot.beats++;
    hot.step_own_ns += now_ns() - started;
    return answer(1);
}

/* Hang our hook on an output, in a table of its own: the script may add hooks to it. */
static int hook_output(Object *output, Object *node) {
    Object *hooks = hot_api.get_attribute(output, hot_api.name_hooks);
    int is_free = hooks == hot_api.none;
    if (hooks) hot_api.release(hooks);
    else hot_api.clear_error();
    Object *register_hooks = is_free ? hot_api.get_attribute(node, hot_api.name_register) : NULL;
    if (register_hooks == NULL) {
        hot_api.clear_error();
        return 0;
    }
    Object *table = hot_api.call(hot_loop.hook_table, NULL, 0, NULL), *done = NULL;
    if (table && !hot_api.dict_set(table, hot_loop.hook_key, hot_loop.receive) &&
        !hot_api.set_attribute(output, hot_api.name_hooks, table))
        done = hot_api.call(register_hooks, &output, 1, NULL);
    if (done) hot_api.release(done);
    drop(&hot.life);
    if (done) hot.life = hot_api.weak_reference(table, NULL);
    if (done == NULL || hot.life == NULL) hot_api.clear_error();
    if (table) hot_api.release(table);
    hot_api.release(register_hooks);
    return done != NULL;
}

static int hold_output(Object *output) {
    int64_t bytes = 0;
    if (hot_api.storage_size(handle_of(output), &bytes)) return 0;
    hot.output_version = number_of(output, hot_api.name_version);
    hot.is_weak = bytes > SMALL_OUTPUT;
    drop(&hot.output);
    hot.output = hot.is_weak ? hot_api.weak_reference(output, NULL) : kept(output);
    if (hot.output == NULL) hot_api.clear_error();
    return hot.output != NULL;
}

/* end_forward(output): False where the output is of a kind that the slow way has to look at. */
static Object *hot_end_forward(Object *self, Object *output) {
    (void)self;
    if (!hot.armed || hot.state != IN_FORWARD) return answer(0);
    int64_t started = now_ns();
    hot.state = AFTER_FORWARD;
    drop(&hot.output_gradient);
    if (type_of(output) != hot_api.tensor_type) return refuse();
    Object *node = hot_api.get_attribute(output, hot_api.name_grad_fn);
    if (node == NULL || node == hot_api.none) {
        if (node) hot_api.release(node);
        else hot_api.clear_error();
        return refuse();
    }
    Object *number = hot_api.get_attribute(node, hot_api.name_number), *own = NULL, *next = NULL;
    if (number) own = hot_api.call(number, NULL, 0, NULL);
    if (own) next = hot_api.call(hot_loop.number_of_next, NULL, 0, NULL);
    hot.output_number = own ? hot_api.as_int(own) : -1;
    hot.boundary = next ? hot_api.as_int(next) : -1;
    int is_held = next && hold_output(output) && hook_output(output, node);
    if (number) hot_api.release(number);
    if (own) hot_api.release(own);
    if (next) hot_api.release(next);
    hot_api.release(node);
    if (!is_held) {
        hot_api.clear_error();
        return refuse();
    }
    hot.step_own_ns += now_ns() - started;
    return answer(1);
}

/* ---------------------------------------------------------------------------------------------- backward */

/* receive(gradient): the hook on the output. */
static Object *hot_receive(Object *self, Object *gradient) {
    (void)self;
    int64_t bytes = 0;
    if (hot.sink && gradient != hot_api.none) {
        Object *done = hot_api.call(hot.sink, &gradient, 1, NULL);
        if (done) hot_api.release(done);
        else hot_api.clear_error();
        return pass_on();
    }
    if (gradient == hot_api.none || hot.state != IN_BACKWARD) return pass_on();
    if (type_of(gradient) == hot_api.tensor_type && !hot_api.storage_size(handle_of(gradient), &bytes) &&
        bytes <= hot_loop.output_limit_bytes) {
        kept(gradient);
        drop(&hot.output_gradient);
        hot.output_gradient = gradient;
    } else {
        hot.armed = 0;
    }
    return pass_on();
}

/* The one element of a plain tensor on the CPU. */
static int read_scalar(const Object *tensor, double *value) {
    void *handle = handle_of(tensor), *data = NULL;
    int64_t count = 0;
    int32_t type = 0, device = 0;
    if (hot_api.numel(handle, &count) || count != 1 || hot_api.device_type(handle, &device) || device != 0) return 0;
    if (hot_api.dtype(handle, &type) || !kind_of_dtype(type)) return 0;
    if (hot_api.data_ptr(handle, &data) || data == NULL) return 0;
    *value = value_at(data, kind_of_dtype(type), 0);
    return 1;
}

static Object *only_loss(Object *given) {
    const Object *type = type_of(given);
    if (type == hot_api.tuple_type && hot_api.tuple_size(given) == 1) return hot_api.tuple_item(given, 0);
    if (type == hot_api.list_type && hot_api.list_size(given) == 1) return hot_api.list_item(given, 0);
    return given;
}

static int loss_is_as_learned(Object *loss) {
    Object *node = hot_api.get_attribute(loss, hot_api.name_grad_fn);
    if (node == NULL) {
        hot_api.clear_error();
        return 0;
    }
    int is_same = type_of(node) == hot_loop.loss_node;
    hot_api.release(node);
    return is_same;
}

/* begin_backward(tensors, grad_tensors): as begin_forward. */
static Object *hot_begin_backward(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || count != 2) return answer(0);
    int64_t started = now_ns();
    /* Inside a backward it is reentrant checkpointing; without a forward another model is trained. */
    if (hot.state == IN_BACKWARD || hot.state == IDLE || hot_api.thread() != hot_loop.thread) return pass_on();
    if (hot.state != AFTER_FORWARD || given[1] != hot_api.none) return refuse();
    Object *loss = only_loss(given[0]);
    double value = 0.0;
    if (type_of(loss) != hot_api.tensor_type || !read_scalar(loss, &value) || !isfinite(value)) return refuse();
    if (!loss_is_as_learned(loss) || !is_called_from(&hot_loop.backward_site)) return refuse();
    kept(loss);
    drop(&hot.loss);
    hot.loss = loss;
    hot.losses += value;
    hot.state = IN_BACKWARD;
    hot.beats++;
    hot.step_own_ns += now_ns() - started;
    return answer(1);
}

/* end_backward(): False where no gradient has come by the output. */
static Object *hot_end_backward(Object *self, Object *nothing) {
    (void)self, (void)nothing;
    if (hot.state != IN_BACKWARD) return answer(0);
    hot.beats++;
    if (!hot.armed || hot.output_gradient == NULL) return refuse();
    hot.state = AFTER_BACKWARD;
    hot.micro_step++;
    if (hot.news && hot_loop.on_news) {
        const int64_t started = now_ns();
        hot.news = 0;
        Object *done = hot_api.call(hot_loop.on_news, NULL, 0, NULL);
        if (done == hot_api.yes) hot.news = 1;
        if (done) hot_api.release(done);
        else hot_api.clear_error();
        hot.step_own_ns += now_ns() - started;
    }
    return answer(1); /* also where it has gone the slow way meanwhile: with a backward that is over */
}

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
    if (!measure_gradients()) return refuse();
    hot.before_clip = hot.total_norm;
    hot.after_clip = NAN;
    hot.state = CLIPPED;
    hot.step_own_ns += now_ns() - started;
    return answer(1);
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
        is_same = hot_api.list_item(groups, i) == hot_loop.groups[i];
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

/* Calls of `step` within the one that is under way: those of `super().step()`. */
static int64_t nested_updates;

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
    if (!has_same_groups(given[0]) || !read_rates(rates)) return refuse();
    if (!is_clipped && !measure_gradients()) return refuse();
    const int has_ratios = is_ratios_step(hot.step);
    if ((is_norms_step() || has_ratios) && !measure_parameters()) return refuse();
    if (!append_step(rates, started)) return refuse();
    if (has_ratios) {
        started = now_ns();
        copy_parameters(hot.step - 1);
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
    drop_step();
    if (updates.step >= 0) {
        const int64_t started = now_ns();
        measure_update();
        hot.step_own_ns += now_ns() - started;
    }
    hot.beats++;
    return answer(1);
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
