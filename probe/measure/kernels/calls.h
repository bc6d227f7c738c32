/* What the modules of a sampled forward return, measured as they return it: a part of kernel.c, called by Python
 * with its lock held.
 *
 * Two callbacks stand before and after each call of a module: 1 us for both, where Python took 20. Whatever is no
 * plain tensor is passed on to Python (`unusual`), which may find one in it and give it back (`measure`). One step
 * of a process can be observed at a time.
 */

enum { CALL_OPEN, CALL_DONE, CALL_FAILED };
enum { CALL_WRAPS = 1, CALL_IS_COMPILED = 2 };
/* Behind which dimension the units lie, where it is not a number of those that follow. */
enum { SECOND = -1, BY_SHAPE = -2 };
/* What is known of an output's units: activity in bytes from this offset on, or this. */
enum { ALL_ACTIVE = -1, NOT_KNOWN = -2 };
/* More are no neurons but a vocabulary; mirrored by tensor_rows.py. */
enum { MAX_UNITS = 65536 };

/* Mirrored by call_binding.py: functions of Python, and objects that are compared with. */
typedef struct {
    Object *(*call)(Object *, Object *const *, size_t, Object *);
    Object *(*get_attribute)(Object *, Object *);
    Object *(*new_reference)(Object *, Object *); /* PyWeakref_NewRef */
    Object *(*referent)(Object *);                /* PyWeakref_GetObject: borrowed */
    Object *(*number)(long long);                 /* PyLong_FromLongLong */
    long long (*as_int)(Object *);
    void (*keep)(Object *);
    void (*release)(Object *);
    unsigned long (*thread)(void);
    Object *(*new_bytes)(const char *, ptrdiff_t); /* PyByteArray_FromStringAndSize */
    char *(*bytes_of)(Object *);                   /* PyByteArray_AsString */
    Object *none, *yes, *no, *name_version, *name_compiled;
    Object *task, *no_task, *is_tracing, *is_negated;
    const Python *reader;
} CallApi;

/* Mirrored by call_binding.py. `low` is NaN where the type of the elements decides what is saturated. */
typedef struct {
    Object *module, *reference; /* the second one weak; whoever gave it keeps it */
    int64_t row, flags, unit_rule;
    double low, high;
} KnownModule;

typedef struct {
    int32_t row, parent, output, state, flags, unit_rule;
    double low, high;
} Call;

typedef struct {
    double row[ROWS], zeros, saturated;
    int64_t elements, units, activity;
} Output;

/* Mirrored by call_binding.py. */
typedef struct {
    int64_t call_count, output_count, activity_bytes, own_ns, has_met_unknown, generation;
    Call *calls;
    Output *outputs;
    uint8_t *activity;
    Object *unusual; /* borrowed */
} CallState;

static CallApi call_api;
static CallState observed;
static struct {
    int64_t known_room, call_room, output_room, activity_room, depth_room, depth, last_version, last_output;
    KnownModule *known; /* a table by address, half empty */
    int32_t *stack;
    Object *last; /* weak: what was measured last; containers return their last child's */
    unsigned long thread;
} calls;

EXPORT CallState *nanscope_calls_state(void) { return &observed; }
EXPORT int64_t nanscope_calls_sizes(int which) {
    return which == 0 ? sizeof(CallApi) : which == 1 ? sizeof(KnownModule) : which == 2 ? sizeof(Call)
           : which == 3 ? sizeof(Output) : sizeof(CallState);
}

static void release_last(void) {
    Object *last = calls.last;
    calls.last = NULL;
    if (last) call_api.release(last);
}

/* Room for one more; 0 where there is no memory. */
static int has_room(void **place, int64_t *room, int64_t count, size_t size) {
    if (count <= *room) return 1;
    int64_t wanted = count * 2 < 256 ? 256 : count * 2;
    void *larger = realloc(*place, (size_t)wanted * size);
    if (larger == NULL) return 0;
    *place = larger;
    *room = wanted;
    return 1;
}

INLINE int64_t slot_of(const Object *module) {
    return (int64_t)(((uint64_t)(uintptr_t)module >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (calls.known_room - 1);
}

/* Know these modules from now on, and no others; 0 where there is no memory. */
EXPORT int nanscope_calls_know(int64_t count, const KnownModule *modules) {
    int64_t room = 16;
    while (room < 2 * count) room *= 2;
    KnownModule *table = calloc((size_t)room, sizeof *table);
    if (table == NULL) return 0;
    free(calls.known);
    calls.known = table;
    calls.known_room = room;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = slot_of(modules[i].module);
        while (table[at].module) at = (at + 1) & (room - 1);
        table[at] = modules[i];
    }
    return 1;
}

static const KnownModule *known_module(const Object *module) {
    if (calls.known == NULL) return NULL;
    int64_t at = slot_of(module);
    while (calls.known[at].module && calls.known[at].module != module) at = (at + 1) & (calls.known_room - 1);
    const KnownModule *known = &calls.known[at];
    /* The address of a module that is gone may be another's by now. */
    return known->module && call_api.referent(known->reference) == module ? known : NULL;
}

static Object *nothing(void) {
    call_api.keep(call_api.none);
    return call_api.none;
}

/* begin(unusual): a step begins, on this thread. `unusual(token, value, number)` is given what C cannot measure:
 * number is that of an output whose units are not known yet, or -1. It is not kept. */
static Object *calls_begin(Object *self, Object *unusual) {
    (void)self;
    release_last();
    observed.call_count = observed.output_count = observed.activity_bytes = observed.own_ns = 0;
    observed.has_met_unknown = 0;
    observed.generation++;
    observed.unusual = unusual;
    calls.depth = 0;
    calls.thread = call_api.thread();
    return nothing();
}

/* end(): the step is over: what is still under way is told to nobody. */
static Object *calls_end(Object *self, Object *none) {
    (void)self, (void)none;
    observed.generation++;
    observed.unusual = NULL;
    release_last();
    return nothing();
}

/* settle(): nothing is open any more, and no output is the last. */
static Object *calls_settle(Object *self, Object *none) {
    (void)self, (void)none;
    calls.depth = 0;
    calls.thread = call_api.thread();
    release_last();
    return nothing();
}

/* A call begins: its number; -1 where that of a wrapper stands for it, or there is no memory. */
EXPORT int64_t nanscope_calls_open(const KnownModule *known, int64_t flags) {
    int64_t parent = calls.depth ? calls.stack[calls.depth - 1] : -1, number = observed.call_count;
    if (parent >= 0 && observed.calls[parent].flags & CALL_WRAPS && observed.calls[parent].row == known->row)
        return -1;
    if (!has_room((void **)&observed.calls, &calls.call_room, number + 1, sizeof(Call))) return -1;
    if (!has_room((void **)&calls.stack, &calls.depth_room, calls.depth + 1, sizeof *calls.stack)) return -1;
    observed.calls[number] = (Call){(int32_t)known->row, (int32_t)parent, -1, CALL_OPEN,
                                    (int32_t)(known->flags | flags), (int32_t)known->unit_rule, known->low, known->high};
    calls.stack[calls.depth++] = (int32_t)number;
    observed.call_count++;
    return number;
}

/* Whether a question of one argument or none has this answer, a singleton. */
static int is_answer(Object *ask, Object *argument, const Object *wanted) {
    if (is_struck()) return 0;
    Object *value = call_api.call(ask, &argument, argument != NULL, NULL);
    if (value == NULL) {
        settle_error();
        return 0;
    }
    call_api.release(value);
    return value == wanted;
}

static int64_t version_of(Object *tensor) {
    Object *value = call_api.get_attribute(tensor, call_api.name_version);
    if (value == NULL) {
        settle_error();
        return -1;
    }
    int64_t version = call_api.as_int(value);
    call_api.release(value);
    if (version == -1) settle_error();
    return version;
}

static int is_module_compiled(Object *module) {
    Object *value = call_api.get_attribute(module, call_api.name_compiled);
    if (value == NULL) {
        settle_error();
        return 0;
    }
    call_api.release(value);
    return value != call_api.none;
}

/* enter(module, args, kwargs): a token; None to hear no more of the call. */
static Object *calls_enter(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (count != 3 || observed.unusual == NULL || calls.thread != call_api.thread()) return nothing();
    int64_t started = now_ns(), number = -1;
    /* In a backward it is a checkpoint's recomputation, whose first run was observed. */
    if (is_answer(call_api.task, NULL, call_api.no_task) && is_answer(call_api.is_tracing, NULL, call_api.no)) {
        const KnownModule *known = known_module(given[0]);
        if (known == NULL) {
            observed.has_met_unknown = 1;
        } else {
            int64_t compiled = is_module_compiled(given[0]) ? CALL_IS_COMPILED : 0;
            number = nanscope_calls_open(known, compiled);
        }
    }
    observed.own_ns += now_ns() - started;
    if (number < 0) return nothing();
    return call_api.number(observed.generation << 32 | number);
}

static void close_call(int64_t number, int state) {
    while (calls.depth && calls.stack[calls.depth - 1] >= number) calls.depth--;
    observed.calls[number].state = state;
}

/* Number of the call that a token stands for; -1 where it is of a step that is over. */
static int64_t number_behind(Object *token) {
    int64_t value = call_api.as_int(token);
    int64_t number = value & 0xffffffff;
    return value >> 32 == observed.generation && number < observed.call_count ? number : -1;
}

/* Sizes (outer, units, inner) of a tensor as it lies in memory; 0 where it lies otherwise. */
static int lies_as(const DLTensor *t, int dim, int64_t lies[3]) {
    int64_t size = 1;
    int is_contiguous = 1, is_last = dim == 1 && (t->ndim == 4 || t->ndim == 5);
    lies[0] = lies[1] = lies[2] = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        is_contiguous &= t->shape[d] == 1 || t->strides[d] == size;
        size *= t->shape[d];
        lies[d < dim ? 0 : d == dim ? 1 : 2] *= t->shape[d];
    }
    if (is_contiguous) return 1;
    for (int64_t d = t->ndim, stride = 1; is_last && d >= 0; d--) {
        /* Channels last: 1, then those behind it from the last, then 0. */
        int at = d == t->ndim ? 1 : d == 1 ? -1 : (int)d;
        if (at < 0) continue;
        is_last &= t->shape[at] == 1 || t->strides[at] == stride;
        stride *= t->shape[at];
    }
    if (is_last) {
        lies[0] = size / (lies[1] ? lies[1] : 1);
        lies[2] = 1;
    }
    return is_last;
}

static int unit_dimension(int64_t rule, int dims) {
    int found;
    if (rule == BY_SHAPE) return dims == 4 || dims == 5 ? 1 : dims - 1;
    if (rule == SECOND) return dims - 1 < 1 ? dims - 1 : 1;
    found = dims - (int)rule - 1;
    return rule ? (found > 0 ? found : 0) : dims - 1;
}

/* Note which units are not all 0; 0 where somebody else has to. */
static int note_units(Output *output, const DLTensor *t, int64_t rule, int kind, const char *data) {
    int dim = unit_dimension(rule, t->ndim);
    int64_t lies[3], units = t->ndim ? t->shape[dim] : 1;
    output->activity = ALL_ACTIVE;
    /* A single number is no unit: it is the same everywhere, whatever it is made of. */
    output->units = units > MAX_UNITS || output->elements == 1 ? 0 : units;
    /* A dead unit would have more zeros than there are. */
    if (!output->units || llround(output->zeros * (double)output->elements) < output->elements / units) return 1;
    output->activity = NOT_KNOWN;
    if (!lies_as(t, dim, lies)) return 0;
    int64_t at = observed.activity_bytes;
    if (!has_room((void **)&observed.activity, &calls.activity_room, at + units, 1)) return 0;
    memset(observed.activity + at, 0, (size_t)units);
    nanscope_units((uint64_t)(uintptr_t)data, kind, lies[0], lies[1], lies[2], observed.activity + at);
    if (!memchr(observed.activity + at, 0, (size_t)units)) {
        output->activity = ALL_ACTIVE;
        return 1;
    }
    observed.activity_bytes += units;
    output->activity = at;
    return 1;
}

static void default_bounds(int kind, double bounds[2]) {
    double largest = kind == F64 ? 0x1.fffffffffffffp1023 : kind == F32 ? 0x1.fffffep127 : kind == F16 ? 65504.0 : 0x1.fep127;
    bounds[0] = -largest / 2;
    bounds[1] = largest / 2;
}

/* Measure what a call has returned: 1, or 0 where it is left to Python; -1 where only its units are. */
static int measure_output(int64_t number, Object *tensor) {
    DLTensor t;
    Object *type = call_api.reader->type_of(tensor);
    call_api.release(type);
    if (type != call_api.reader->tensor_type) return 0;
    int64_t version = version_of(tensor), generation = observed.generation;
    if (calls.last && call_api.referent(calls.last) == tensor && calls.last_version == version) {
        observed.calls[number].output = (int32_t)calls.last_output;
        return 1;
    }
    if (call_api.reader->describe(tensor, &t)) {
        settle_error();
        return 0;
    }
    int64_t size = dense_size(&t);
    int kind = kind_of(&t);
    if (kind == SPECIAL || kind & COMPLEX || t.device_type != 1) return 0;
    if (size == 0) return 1;
    if (size < 0 || t.data == NULL || !is_answer(call_api.is_negated, tensor, call_api.no)) return 0;
    const Call call = observed.calls[number];
    double bounds[2] = {call.low, call.high};
    if (isnan(call.low)) default_bounds(kind, bounds);
    Output output = {.elements = size};
    uint64_t pointer = (uint64_t)(uintptr_t)t.data + t.byte_offset;
    uint8_t job_kind = (uint8_t)kind;
    Job job = {.count = 1, .pointers = &pointer, .sizes = &size, .kinds = &job_kind, .block = output.row,
               .bounds = bounds, .fractions = &output.zeros, .elements = size};
    void *state = size > KEEPS_THE_LOCK ? call_api.reader->unlock() : NULL;
    nanscope_statistics(&job);
    if (state != NULL) call_api.reader->lock(state);
    /* Another thread may have ended the session meanwhile. */
    if (observed.generation != generation) return 1;
    int64_t at = observed.output_count;
    if (!has_room((void **)&observed.outputs, &calls.output_room, at + 1, sizeof output)) return 1;
    int is_whole = note_units(&output, &t, call.unit_rule, kind, (const char *)(uintptr_t)pointer);
    observed.outputs[at] = output;
    observed.calls[number].output = (int32_t)at;
    observed.output_count++;
    release_last();
    calls.last = call_api.new_reference(tensor, NULL);
    if (calls.last == NULL) settle_error();
    calls.last_version = version;
    calls.last_output = at;
    return is_whole ? 1 : -1;
}

/* Have Python look at what a call has returned. */
static void pass_to_python(Object *token, Object *value, int64_t output) {
    Object *number = call_api.number(output);
    if (number == NULL || observed.unusual == NULL || is_struck()) {
        if (number) call_api.release(number);
        else settle_error();
        return;
    }
    Object *arguments[3] = {token, value, number}, *function = observed.unusual;
    call_api.keep(function);
    Object *result = call_api.call(function, arguments, 3, NULL);
    call_api.release(function);
    call_api.release(number);
    if (result) call_api.release(result);
    else settle_error();
}

/* leave(token, output): the call has returned. */
static Object *calls_leave(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    int64_t started = now_ns(), number = count == 2 ? number_behind(given[0]) : -1;
    if (number < 0) return nothing();
    close_call(number, CALL_DONE);
    int measured = measure_output(number, given[1]);
    observed.own_ns += now_ns() - started;
    if (measured != 1) pass_to_python(given[0], given[1], measured ? observed.calls[number].output : -1);
    return nothing();
}

/* measure(token, tensor): what Python has found in an output; True, the same value, where it is measured. */
static Object *calls_measure(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    int64_t number = count == 2 ? number_behind(given[0]) : -1;
    int measured = number < 0 ? 1 : measure_output(number, given[1]);
    if (measured < 0) pass_to_python(given[0], given[1], observed.calls[number].output);
    Object *result = measured ? call_api.yes : call_api.no;
    call_api.keep(result);
    return result;
}

/* abandon(token): the call has raised: it and what it called are no part of the step. */
static Object *calls_abandon(Object *self, Object *token) {
    (void)self;
    int64_t number = number_behind(token);
    if (number < 0) return nothing();
    close_call(number, CALL_FAILED);
    for (int64_t at = number; at < observed.call_count; at++) observed.calls[at].state = CALL_FAILED;
    return nothing();
}

#include "call_columns.h"

static int64_t observation_ns(void) { return observed.own_ns; }

#include "call_methods.h"
