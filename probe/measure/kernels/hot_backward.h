/* The backward of a followed step: a part of hot.h. Keeps the loss, and dL/d(output) by hooks on the outputs. */

/* Keep what one output receives; 0 where only the slow way can tell what it means. */
static int keep_gradient(HotCall *call, HotOutput *output, Object *gradient) {
    int32_t layout = -1;
    int64_t bytes = 0;
    if (type_of(gradient) != hot_api.tensor_type || hot_api.layout(handle_of(gradient), &layout) || layout != 0) return 0;
    if (hot_api.storage_size(handle_of(gradient), &bytes)) return 0;
    if (call->bytes + bytes > hot_loop.output_limit_bytes) return output->is_droppable;
    if (call->task == NULL && (call->task = call_quietly(hot_loop.task, NULL, 0)) == NULL) return 0;
    call->bytes += bytes;
    output->gradient = kept(gradient);
    return 1;
}

/* Somebody waits for a time in which Python's lock is free: the gradients of the parameters are computed next. */
static void ring_bell(void) {
    Object *bell = hot.bell;
    hot.bell = NULL;
    Object *rung = bell ? call_quietly(bell, NULL, 0) : NULL;
    if (rung) hot_api.release(rung);
}

/* receive(gradient): the hook on an output; bound to its number, see `HotLoop.receive`. */
static Object *hot_receive(Object *self, Object *gradient) {
    if (gradient == hot_api.none) return pass_on();
    if (hot.sink == NULL && hot.state == IN_BACKWARD) {
        const int64_t index = hot_api.as_int(self), position = index % MAX_OUTPUTS;
        HotCall *call = &hot_calls[hot.micro_step];
        if (index / MAX_OUTPUTS == hot.micro_step && position < call->output_count) {
            HotOutput *output = &call->outputs[position];
            /* A second one comes from the graph of a step before, which the script has kept. */
            if (output->gradient || keep_gradient(call, output, gradient)) {
                ring_bell();
                return pass_on();
            }
        }
        /* The output of an earlier micro-step, or a gradient of an odd kind. */
        Object *done = call_quietly(hot_loop.take_over, NULL, 0);
        if (done) hot_api.release(done);
    }
    if (hot.sink) {
        Object *given[] = {self, gradient}, *done = call_quietly(hot.sink, given, 2);
        if (done) hot_api.release(done);
    }
    return pass_on();
}

/* The one element of a plain tensor on the CPU. */
static int read_scalar(const Object *tensor, double *value) {
    void *handle = handle_of(tensor), *data = NULL;
    int64_t count = 0;
    int32_t type = 0, device = 0;
    if (type_of(tensor) != hot_api.tensor_type) return 0;
    if (hot_api.numel(handle, &count) || count != 1 || hot_api.device_type(handle, &device) || device != 0) return 0;
    if (hot_api.dtype(handle, &type) || !kind_of_dtype(type)) return 0;
    if (hot_api.data_ptr(handle, &data) || data == NULL) return 0;
    *value = value_at(data, kind_of_dtype(type), 0);
    return 1;
}

/* Read what a backward is called on, or only see that it is one number where reading it would wait; 0 for what the
 * slow way has to look at. */
static int read_loss(Object *loss, HotCall *call) {
    if (hot.scaled && loss != hot.scaled) return 0;
    if (!hot_loop.reads_losses) {
        int64_t count = 0;
        int32_t device = -1;
        call->raw = call->value = NAN;
        return type_of(loss) == hot_api.tensor_type && !hot_api.numel(handle_of(loss), &count) && count == 1 &&
               !hot_api.device_type(handle_of(loss), &device) && is_known_device(device);
    }
    if (!read_scalar(loss, &call->raw) || !isfinite(call->raw) != hot_loop.bad_loss) return 0;
    call->value = call->raw;
    return !hot.scaled || (read_scalar(hot.unscaled, &call->value) && !isfinite(call->value) == hot_loop.bad_loss);
}

static Object *only_loss(Object *given) {
    const Object *type = type_of(given);
    if (type == hot_api.tuple_type && hot_api.tuple_size(given) == 1) return hot_api.tuple_item(given, 0);
    if (type == hot_api.list_type && hot_api.list_size(given) == 1) return hot_api.list_item(given, 0);
    return given;
}

static int loss_is_as_learned(Object *loss, const HotMicroStep *learned) {
    Object *node = hot_api.get_attribute(loss, hot_api.name_grad_fn);
    if (node == NULL) {
        settle_error();
        return 0;
    }
    int is_same = type_of(node) == learned->loss_node;
    hot_api.release(node);
    return is_same;
}

/* Have Python look at a loss whose graph says more than its type; 0 where that is not as learned. */
static int look_at_loss(Object *loss, HotCall *call, const HotMicroStep *learned) {
    Object *given[3 + MAX_OUTPUTS] = {loss, hot.unscaled ? hot.unscaled : hot_api.none, call->boundary};
    for (int64_t i = 0; i < call->output_count; i++) given[3 + i] = call->outputs[i].number;
    Object *noted = call_quietly(hot_loop.look_at_loss, given, (size_t)(3 + call->output_count));
    if (noted == NULL) return 0;
    if (type_of(noted) != hot_api.tuple_type || hot_api.tuple_item(noted, 2) != learned->loss_core) {
        hot_api.release(noted);
        return 0;
    }
    drop(&call->noted);
    call->noted = noted;
    call->divisor = hot_api.as_float(hot_api.tuple_item(noted, 0));
    call->share = hot_api.as_float(hot_api.tuple_item(noted, 1));
    return 1;
}

/* Whether some gradient is not zero: else the script has cleared those of the micro-steps before. One on a device is
 * not known to be. */
static int has_gradients(void) {
    for (int64_t i = 0; i < hot_loop.parameter_count; i++) {
        hot_memory.gradients[i] = hot_api.grad(*(void **)handle_of(hot_loop.parameters[i]));
        if (is_on_device(hot_memory.gradients[i])) return 1;
        if (!find_gradient(i)) return 0;
        if (hot_memory.kinds[i] == MISSING) continue;
        const char *data = (const char *)(uintptr_t)hot_memory.pointers[i];
        for (int64_t at = 0; at < hot_memory.sizes[i]; at++)
            if (value_at(data, hot_memory.kinds[i], at) != 0) return 1;
    }
    return 0;
}

/* after_scale(loss, scaled): what a GradScaler has made for the backward to come. */
static Object *hot_after_scale(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || count != 2) return answer(0);
    if (given[0] == given[1]) return answer(1); /* it is disabled */
    if (hot.state != AFTER_FORWARD || hot_loop.scaler == NULL || hot.scaled || hot_api.thread() != hot_loop.thread)
        return refuse();
    hot.unscaled = kept(given[0]);
    hot.scaled = kept(given[1]);
    return answer(1);
}

/* begin_backward(tensors, grad_tensors): as begin_forward. */
static Object *hot_begin_backward(Object *self, Object *const *given, ptrdiff_t count) {
    (void)self;
    if (!hot.armed || count != 2) return answer(0);
    int64_t started = now_ns();
    /* Inside a backward it is reentrant checkpointing; without a forward another model is trained. */
    if (hot.state == IN_BACKWARD || hot.state == IDLE || hot_api.thread() != hot_loop.thread) return pass_on();
    if (hot.state != AFTER_FORWARD || given[1] != hot_api.none) return refuse();
    const HotMicroStep *learned = &hot_loop.micro[hot.micro_step];
    HotCall *call = &hot_calls[hot.micro_step];
    Object *loss = only_loss(given[0]);
    if (!read_loss(loss, call) || !loss_is_as_learned(loss, learned)) return refuse();
    if (!is_called_from(&learned->backward_site)) return refuse();
    if (hot.micro_step > 0 && (!has_gradients() || is_updated_unseen())) return refuse();
    call->divisor = call->share = NAN;
    if (learned->looks_at_loss && !look_at_loss(loss, call, learned)) return refuse();
    call->loss = kept(loss);
    call->unscaled = hot.unscaled;
    hot.unscaled = NULL;
    drop(&hot.scaled);
    hot.state = IN_BACKWARD;
    hot.beats++;
    if (hot_loop.is_distributed && hot.free_since_ns) hot.before_backward_ns += started - hot.free_since_ns;
    const int64_t ended = now_ns();
    hot.step_own_ns += ended - started;
    begin_phase(PHASE_BACKWARD, ended);
    return answer(1);
}

/* end_backward(): False where no gradient has come by the outputs. */
static Object *hot_end_backward(Object *self, Object *nothing) {
    (void)self, (void)nothing;
    if (hot.state != IN_BACKWARD) return answer(0);
    const int64_t started = now_ns();
    end_phase(PHASE_BACKWARD, started, 0);
    hot.beats++;
    const HotCall *call = &hot_calls[hot.micro_step];
    if (!hot.armed || call->task == NULL || !mark_parameter()) return refuse();
    hot.state = AFTER_BACKWARD;
    hot.micro_step++;
    if (hot_loop.is_distributed) hot.free_since_ns = now_ns();
    if (hot_loop.on_news && (hot.news || (hot.news_at_ns && started >= hot.news_at_ns))) {
        hot.news = hot.news_at_ns = 0;
        Object *again = call_quietly(hot_loop.on_news, NULL, 0);
        if (again) hot.news_at_ns = hot_api.as_int(again);
        if (again) hot_api.release(again);
        if (hot.news_at_ns < 0) hot.news_at_ns = 0;
        settle_error();
    }
    hot.step_own_ns += now_ns() - started;
    return answer(1); /* also where it has gone the slow way meanwhile: with a backward that is over */
}
