/* The end of a followed step, before and after its update: a part of hot.h. */

/* Measure all gradients; 0 where some cannot be read by pointer, or where they are finite, or not, unlike learned. */
static int measure_gradients(void) {
    Job job = {.count = hot_loop.parameter_count, .pointers = hot_memory.pointers, .sizes = hot_memory.sizes,
               .kinds = hot_memory.kinds, .block = hot_memory.block};
    if (!find_gradients(&job)) return 0;
    measure_held(&job);
    hot.total_norm = job.missing < job.count ? job.total_norm : NAN;
    return (job.nonfinite != 0) == hot_loop.bad_gradients;
}

/* before_clip(): measures the gradients before torch clips them; False for the slow way. None where the step has
 * none yet: they are another model's. */
static Object *hot_before_clip(Object *self, Object *nothing) {
    (void)self, (void)nothing;
    if (hot.armed && hot.micro_step == 0 && (hot.state == IDLE || hot.state == AFTER_FORWARD)) return pass_on();
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
        settle_error();
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

/* Whether the step under way has had all that was learned of one but its end, an update or none. */
static int is_complete(void) {
    if (hot.state != AFTER_BACKWARD && hot.state != CLIPPED) return 0;
    return hot.micro_step == hot_loop.micro_steps && (hot.state == CLIPPED) == (int)hot_loop.clips;
}

/* Measure a step that ends now, and write its record; 0 where the slow way has to finish it. */
static int record_step(int64_t started) {
    double rates[MAX_GROUPS];
    if (!read_rates(rates)) return 0;
    if (hot.state != CLIPPED && !measure_gradients()) return 0;
    const int has_ratios = is_ratios_step(hot.step);
    if ((is_norms_step() || has_ratios) && !measure_parameters()) return 0;
    const int is_observed = is_observed_step(hot.step);
    if (is_observed && (!is_answered(hot_loop.collect, NULL, 0) || !hot.armed)) return 0;
    if (!append_step(rates, started)) return 0;
    if (has_ratios || is_observed || hot.has_logged) {
        started = now_ns();
        if (is_observed || hot.has_logged) is_answered(hot_loop.add_more, NULL, 0);
        if (has_ratios) copy_parameters(hot.step - 1);
        hot.step_own_ns += now_ns() - started; /* a part of the next step, as in the slow way */
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
    if (!is_complete() || hot_loop.has_no_update) return refuse();
    if (hot_api.tuple_size(given[1]) != 1 || hot_api.dict_size(given[2]) != 0) return refuse();
    if (!has_same_groups(given[0]) || has_thawed()) return refuse();
    if (hot_loop.finish) return finish_late(started);
    if (!record_step(started)) return refuse();
    begin_phase(PHASE_UPDATE, now_ns());
    hot.state = IN_UPDATE;
    nested_updates = 0;
    hot.beats++;
    return answer(1);
}

/* The step ends without an update, as learned: False where the slow way has to finish it. */
static Object *end_without_update(void) {
    const int64_t started = now_ns();
    if (!is_complete() || is_updated_unseen()) return refuse();
    if (!has_same_groups(hot_loop.optimizer) || has_thawed() || !record_step(started)) return refuse();
    drop_step();
    hot.beats++;
    return answer(1);
}

/* before_clearing(owner): `owner.zero_grad` is called; False where the slow way has to look at what that drops. */
static Object *hot_before_clearing(Object *self, Object *owner) {
    (void)self;
    if (!hot.armed || hot_api.thread() != hot_loop.thread) return answer(0);
    if (hot.state == IDLE || (hot.state == AFTER_FORWARD && hot.micro_step == 0)) return answer(1); /* nothing new */
    const int is_whole = owner == hot_loop.optimizer || owner == hot_loop.root;
    return is_whole && hot_loop.has_no_update ? end_without_update() : answer(0);
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
    const int64_t started = now_ns();
    end_phase(PHASE_UPDATE, started, 0);
    if (hot_loop.finish) nanscope_hot_forget(); /* inputs too: Python keeps those of finished steps */
    else drop_step();
    if (updates.step >= 0) {
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
    if (!hot.armed || !is_known || hot_api.thread() != hot_loop.thread) return answer(0);
    return hot_loop.has_no_update && hot.state != IDLE ? end_without_update() : answer(hot.state == IDLE);
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
