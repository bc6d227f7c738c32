/* The forward of a followed step: a part of hot.h. Keeps references to what it was called with and returned. */

/* How far containers among the arguments are looked into, as open_step.py does for the first tensor. */
enum { MAX_DEPTH = 2, MAX_ITEMS = 64 };

static int is_atom(const Object *object) {
    const Object *type = type_of(object);
    for (int i = 0; i < 6; i++)
        if (type == hot_api.atoms[i]) return 1;
    return 0;
}

static int is_container(const Object *object) {
    const Object *type = type_of(object);
    return type == hot_api.dict_type || type == hot_api.list_type || type == hot_api.tuple_type;
}

/* What is noted of the arguments of a call before it is known that it can be followed. */
typedef struct {
    int64_t tensors, bytes, samples, elements, containers, largest, versions[MAX_ARGUMENTS];
} Noted;

/* Note a tensor; 0 where it is of a kind that the slow way has to look at. */
static int note_tensor(Object *value, Noted *noted) {
    if (noted->tensors == MAX_ARGUMENTS) return 0;
    void *tensor = handle_of(value);
    int32_t layout = -1, device = -1, type = -1;
    int64_t storage = 0, dims = 0, elements = 0, *sizes = NULL;
    if (hot_api.layout(tensor, &layout) || layout != 0) return 0;
    if (hot_api.numel(tensor, &elements) || hot_api.dtype(tensor, &type)) return 0;
    if (hot_api.device_type(tensor, &device) || !is_known_device(device)) return 0;
    if (device == ON_CPU && kind_of_dtype(type) && elements > noted->largest) noted->largest = elements;
    if (hot_api.storage_size(tensor, &storage)) return 0;
    Object *needs_gradient = hot_api.get_attribute(value, hot_api.name_requires_grad);
    if (needs_gradient == NULL) settle_error();
    else hot_api.release(needs_gradient);
    const int64_t version = tensor_version(value);
    if (needs_gradient != hot_api.no || version < 0) return 0;
    if (noted->tensors == 0 && !hot_api.dim(tensor, &dims) && dims > 0 && !hot_api.sizes(tensor, &sizes))
        noted->samples = sizes[0];
    if (noted->tensors == 0) noted->elements = elements;
    noted->versions[noted->tensors++] = version;
    noted->bytes += storage;
    return 1;
}

static int note_argument(Object *value, Noted *noted, int depth) {
    ptrdiff_t at = 0;
    Object *key, *item;
    const Object *type = type_of(value);
    if (type == hot_api.tensor_type) return note_tensor(value, noted);
    if (!is_container(value)) return is_atom(value);
    if (depth == 0) return 0;
    noted->containers++;
    if (type == hot_api.dict_type) {
        if (hot_api.dict_size(value) > MAX_ITEMS) return 0;
        while (hot_api.dict_next(value, &at, &key, &item))
            if (!note_argument(item, noted, depth - 1)) return 0;
        return 1;
    }
    const int is_list = type == hot_api.list_type;
    const ptrdiff_t size = is_list ? hot_api.list_size(value) : hot_api.tuple_size(value);
    if (size > MAX_ITEMS) return 0;
    for (; at < size; at++)
        if (!note_argument(is_list ? hot_api.list_item(value, at) : hot_api.tuple_item(value, at), noted, depth - 1))
            return 0;
    return 1;
}

static int note_arguments(Object *args, Object *kwargs, const HotMicroStep *learned, Noted *noted) {
    ptrdiff_t at = 0;
    Object *key, *value;
    if (type_of(args) != hot_api.tuple_type || hot_api.tuple_size(args) != learned->argument_count) return 0;
    if (hot_api.dict_size(kwargs) != learned->keyword_count) return 0;
    for (int64_t i = 0; i < learned->argument_count; i++)
        if (!note_argument(hot_api.tuple_item(args, i), noted, MAX_DEPTH)) return 0;
    while (hot_api.dict_next(kwargs, &at, &key, &value))
        if (!note_argument(value, noted, MAX_DEPTH)) return 0;
    return noted->tensors == learned->tensor_count && noted->bytes + hot.input_bytes <= hot_loop.input_limit_bytes;
}

/* The same tensors in containers of our own: the script may go on to fill its own. NULL without memory. */
static Object *copy_containers(Object *value) {
    const Object *type = type_of(value);
    ptrdiff_t at = 0;
    Object *key, *item;
    if (!is_container(value)) return kept(value);
    if (type == hot_api.dict_type) {
        Object *copy = hot_api.dict_copy(value);
        while (copy && hot_api.dict_next(value, &at, &key, &item)) {
            Object *inner = is_container(item) ? copy_containers(item) : NULL;
            if (inner && hot_api.dict_set(copy, key, inner)) settle_error();
            if (inner) hot_api.release(inner);
        }
        return copy;
    }
    const int is_list = type == hot_api.list_type;
    const ptrdiff_t size = is_list ? hot_api.list_size(value) : hot_api.tuple_size(value);
    Object *copy = is_list ? hot_api.list_slice(value, 0, size) : hot_api.new_tuple(size);
    for (; copy && at < size; at++) {
        item = is_list ? hot_api.list_item(value, at) : hot_api.tuple_item(value, at);
        Object *inner = copy_containers(item);
        if (inner == NULL) inner = kept(hot_api.none);
        if (is_list) hot_api.list_set(copy, at, inner);
        else hot_api.tuple_set(copy, at, inner);
    }
    return copy;
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

/* Have the stack of a step noted whose outer lines are others: a loop that is entered from another place. */
static void see_to_stack(void) {
    if (hot_loop.note_stack == NULL) return;
    uint64_t sum = 1;
    Object *frame = kept(hot_api.frame());
    for (int i = 0; i < STACK_FRAMES && frame; i++, frame = step_out(frame)) {
        Object *code = hot_api.code(frame);
        hot_api.release(code); /* compared only: the frame keeps it */
        sum = (sum ^ (uint64_t)(uintptr_t)code) * 0x100000001B3ull;
        sum = (sum ^ (uint64_t)hot_api.instruction(frame)) * 0x100000001B3ull;
    }
    if (frame) hot_api.release(frame);
    if (sum == known_stack) return;
    known_stack = sum;
    is_answered(hot_loop.note_stack, NULL, 0);
}

/* Whether autocast, tracing, dynamo and torch.func are as they were learned. While the dispatch keys are those of a
 * forward at which all was asked, some need not be asked again: 10 us of cold code. */
static int is_ambient_as_learned(void) {
    if (followed_at != times_followed) return 0;
    const uint64_t *keys = hot_loop.dispatch_keys;
    const int is_known = has_known_keys && keys[0] == known_keys[0] && keys[1] == known_keys[1];
    for (int64_t i = is_known ? hot_loop.told_by_keys : 0; i < hot_loop.ambient_count; i++) {
        Object *argument = hot_loop.ambient_argument[i];
        Object *value = call_quietly(hot_loop.ambient[i], &argument, argument != NULL);
        if (value == NULL) return 0;
        hot_api.release(value); /* compared only: it is a singleton */
        if (value != hot_loop.ambient_value[i]) return 0;
    }
    memcpy(known_keys, keys, sizeof known_keys);
    has_known_keys = 1;
    return hot_api.grad_is_enabled() && !hot_api.inference_is_enabled();
}

/* Whether DistributedDataParallel averages gradients after this micro-step as it was learned, if there is one. */
static int synchronises_as_learned(const HotMicroStep *learned) {
    if (hot_loop.replica == NULL) return 1;
    return is_true(hot_loop.replica, hot_api.name_synchronises) == (learned->synchronises == hot_api.yes);
}

/* Keep what the forward is called with; 0 without memory. */
static int keep_inputs(Object *args, Object *kwargs, const Noted *noted, HotCall *call) {
    KeptInputs kept_now = {.step = hot.step};
    memcpy(kept_now.versions, noted->versions, sizeof noted->versions);
    if (hot_loop.random_state && (kept_now.random = call_quietly(hot_loop.random_state, NULL, 0)) == NULL) return 0;
    kept_now.args = noted->containers ? copy_containers(args) : kept(args);
    kept_now.kwargs = noted->containers ? copy_containers(kwargs) : kept(kwargs);
    if (kept_now.args == NULL || kept_now.kwargs == NULL) {
        settle_error();
        drop_inputs(&kept_now);
        return 0;
    }
    KeptInputs *places = &hot_kept[hot.step % KEPT_STEPS * MAX_MICRO_STEPS];
    for (int64_t i = hot.micro_step; i < hot_loop.micro_steps; i++) drop_inputs(&places[i]);
    places[hot.micro_step] = kept_now;
    call->inputs = &places[hot.micro_step];
    call->samples = noted->samples;
    call->elements = noted->elements;
    call->bytes = 0;
    return 1;
}

/* begin_forward(module, args, kwargs): True, the call is followed from here; None, it is none of a step's; False,
 * the slow way is to be gone. */
static Object *hot_begin_forward(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || count != 3) return answer(0);
    int64_t started = now_ns();
    if (hot_api.thread() != hot_loop.thread) return answer(0);
    /* Inside the forward of the root: a part of it that is a root elsewhere, the model inside of a wrapper. */
    if (hot.state == IN_FORWARD) return pass_on();
    if (given[0] != hot_loop.root) return answer(0);
    if (hot.state == IN_BACKWARD) return pass_on();
    if (hot.state == IN_UPDATE) { /* the update has raised */
        drop_step();
        updates.step = -1;
    }
    if (hot.state != IDLE && !(hot.state == AFTER_BACKWARD && hot.micro_step < hot_loop.micro_steps)) return refuse();
    if (hot.state == IDLE && (hot.attention || hot.step >= hot.slow_at)) return refuse();
    if (is_updated_unseen()) return refuse();
    if (hot.state == IDLE) hot.input_bytes = 0;
    const HotMicroStep *learned = &hot_loop.micro[hot.micro_step];
    if (!is_true(given[0], hot_api.name_training)) return refuse();
    if (!is_called_from(&learned->forward_site) || !is_ambient_as_learned()) return refuse();
    Noted noted = {0};
    if (!synchronises_as_learned(learned) || !note_arguments(given[1], given[2], learned, &noted)) return refuse();
    if (!keep_inputs(given[1], given[2], &noted, &hot_calls[hot.micro_step])) return refuse();
    hot.input_bytes += noted.bytes;
    if (hot.micro_step == 0) see_to_stack();
    if (is_observed_step(hot.step)) is_answered(hot_loop.observe, given, 3);
    else if (is_norms_step() && hot.micro_step == 0 && hot_loop.glance && noted.largest <= hot_loop.glanced_elements)
        is_answered(hot_loop.glance, given, 3);
    hot.state = IN_FORWARD;
    hot.beats++;
    const int64_t ended = now_ns();
    hot.step_own_ns += ended - started;
    begin_phase(PHASE_FORWARD, ended);
    return answer(1);
}

/* Hang our hook on an output, in a table of its own: the script may add hooks to it. */
static int hook_output(Object *output, Object *receive, Object **life) {
    Object *hooks = hot_api.get_attribute(output, hot_api.name_hooks);
    int is_free = hooks == hot_api.none;
    if (hooks) hot_api.release(hooks);
    Object *node = is_free ? hot_api.get_attribute(output, hot_api.name_grad_fn) : NULL;
    Object *register_hooks = node ? hot_api.get_attribute(node, hot_api.name_register) : NULL;
    if (node) hot_api.release(node);
    if (register_hooks == NULL) {
        settle_error();
        return 0;
    }
    Object *table = hot_api.call(hot_loop.hook_table, NULL, 0, NULL), *done = NULL;
    if (table && !hot_api.dict_set(table, hot_loop.hook_key, receive) &&
        !hot_api.set_attribute(output, hot_api.name_hooks, table))
        done = hot_api.call(register_hooks, &output, 1, NULL);
    if (done) hot_api.release(done);
    if (done) *life = hot_api.weak_reference(table, NULL);
    if (done == NULL || *life == NULL) settle_error();
    if (table) hot_api.release(table);
    hot_api.release(register_hooks);
    return done != NULL;
}

/* Hold one output; 0 where it is of a kind that the slow way has to look at. */
static int hold_output(Object *output, HotOutput *place) {
    int32_t layout = -1;
    int64_t bytes = 0, dims = 0;
    Object *node = NULL, *number = NULL;
    if (type_of(output) != hot_api.tensor_type) return 0;
    if (hot_api.layout(handle_of(output), &layout) || layout != 0 || hot_api.storage_size(handle_of(output), &bytes) ||
        hot_api.dim(handle_of(output), &dims))
        return 0;
    place->version = tensor_version(output);
    place->is_weak = bytes > SMALL_OUTPUT;
    place->is_droppable = dims > 0;
    if ((node = hot_api.get_attribute(output, hot_api.name_grad_fn)) && node != hot_api.none)
        number = hot_api.get_attribute(node, hot_api.name_number);
    if (number) place->number = call_quietly(number, NULL, 0);
    if (place->number) place->held = place->is_weak ? hot_api.weak_reference(output, NULL) : kept(output);
    if (number) hot_api.release(number);
    if (node) hot_api.release(node);
    if (place->held == NULL) settle_error();
    return place->held != NULL;
}

/* Hold all outputs and hang hooks on them, or nothing; `list` is NULL where the output is one tensor. */
static int hold_outputs(Object *output, Object *list, int64_t count, HotCall *call) {
    int is_held = (call->boundary = hot_api.new_int(hot_api.next_sequence_number())) != NULL, has_scalar = 0;
    for (int64_t i = 0; i < count && is_held; i++) {
        memset(&call->outputs[i], 0, sizeof call->outputs[i]);
        call->output_count = i + 1;
        is_held = hold_output(list ? hot_api.list_item(list, i) : output, &call->outputs[i]);
        has_scalar |= !call->outputs[i].is_droppable;
    }
    Object *const *receive = &hot_loop.receive[hot.micro_step * MAX_OUTPUTS];
    for (int64_t i = 0; i < count && is_held; i++) {
        /* Next to a loss of its own the root's other outputs rarely get a gradient from outside. */
        call->outputs[i].is_droppable &= has_scalar && count > 1;
        is_held = hook_output(list ? hot_api.list_item(list, i) : output, receive[i], &call->outputs[i].life);
    }
    if (!is_held) {
        KeptInputs *inputs = call->inputs;
        drop_call(call);
        call->inputs = inputs;
    }
    return is_held;
}

/* end_forward(output): False where the output is of a kind that the slow way has to look at. */
static Object *hot_end_forward(Object *self, Object *output) {
    (void)self;
    if (!hot.armed || hot.state != IN_FORWARD) return answer(0);
    int64_t started = now_ns(), count = 1;
    const int64_t observed_ns = is_observed_step(hot.step) ? observation_ns() : 0;
    end_phase(PHASE_FORWARD, started, observed_ns);
    if (is_observed_step(hot.step)) {
        hot.step_own_ns += observed_ns;
        is_answered(hot_loop.end_observation, &output, 1);
        if (is_struck() || !hot.armed || hot.state != IN_FORWARD) return answer(0);
    }
    hot.state = AFTER_FORWARD;
    Object *list = NULL;
    if (type_of(output) != hot_api.tensor_type) {
        list = call_quietly(hot_loop.find_outputs, &output, 1);
        if (list == NULL) return refuse();
        count = hot_api.list_size(list);
    }
    int is_held = count == hot_loop.micro[hot.micro_step].output_count && count <= MAX_OUTPUTS &&
                  hold_outputs(output, list, count, &hot_calls[hot.micro_step]);
    if (list) hot_api.release(list);
    if (!is_held) return refuse();
    hot.step_own_ns += now_ns() - started;
    return answer(1);
}
