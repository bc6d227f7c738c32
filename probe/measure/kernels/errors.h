/* What Python code raises that a callback of ours calls: a part of hot.h.
 *
 * A failure of ours is cleared. What a signal handler raised meanwhile, or a Ctrl-C, is the script's: it is kept until
 * the callback returns, and leaves the script's own call then. */

/* Mirrored by binding.py. */
typedef struct {
    Object *(*call)(Object *, Object *const *, size_t, Object *);
    void (*release)(Object *);
    Object *(*occurred)(void);
    void (*fetch)(Object **, Object **, Object **);
    void (*normalize)(Object **, Object **, Object **);
    void (*restore)(Object *, Object *, Object *); /* takes the references */
    int (*set_traceback)(Object *, Object *);
    int (*call_soon)(int (*)(void *), void *); /* on the main thread, between two bytecodes */
    Object *is_scripts; /* (error): whether it is the script's */
    Object *yes;
} ErrorApi;

typedef struct {
    Object *kind, *error, *trace;
} Raised;

enum { MOST_ASKED = 3, MOST_BEGUN = 10 };

static ErrorApi errors;
static __thread Raised struck; /* what is to leave the callback under way on this thread */

EXPORT void nanscope_errors_use(const ErrorApi *api) { errors = *api; }

static Raised take_error(void) {
    Raised raised = {NULL, NULL, NULL};
    errors.fetch(&raised.kind, &raised.error, &raised.trace);
    errors.normalize(&raised.kind, &raised.error, &raised.trace);
    if (raised.trace) errors.set_traceback(raised.error, raised.trace);
    return raised;
}

static void let_go(Raised *raised) {
    errors.release(raised->kind);
    if (raised->error) errors.release(raised->error);
    if (raised->trace) errors.release(raised->trace);
}

INLINE int is_struck(void) { return struck.error != NULL; }

/* Clear the error of a call of ours, if there is one; the script's is kept. Asking may raise, too: a handler does, or
 * there is no room left to ask in. Then that error is asked about instead. */
static void settle_error(void) {
    for (int asked = 0; asked < MOST_ASKED && errors.occurred(); asked++) {
        Raised raised = take_error();
        Object *said = is_struck() || raised.error == NULL ? NULL : errors.call(errors.is_scripts, &raised.error, 1, NULL);
        if (said) errors.release(said); /* compared only: it is a singleton */
        if (said == errors.yes) {
            struck = raised;
            return;
        }
        let_go(&raised);
    }
    if (errors.occurred()) {
        Raised unasked = take_error();
        let_go(&unasked);
    }
}

/* What a callback returns: the result, or what is to leave it. */
static Object *or_raise(Object *result) {
    if (!is_struck()) return result;
    Raised raised = struck;
    struck = (Raised){NULL, NULL, NULL};
    if (result) errors.release(result);
    hot.armed = 0; /* the slow way goes on */
    errors.restore(raised.kind, raised.error, raised.trace);
    return NULL;
}

static int raise_late(void *late) {
    Raised raised = *(Raised *)late;
    free(late);
    errors.restore(raised.kind, raised.error, raised.trace);
    return -1;
}

/* Have it raised on the main thread; it is lost where there is no memory for it, or too much waits. */
static void raise_soon(Raised *raised) {
    Raised *late = malloc(sizeof *late);
    if (late) *late = *raised;
    if (late && !errors.call_soon(raise_late, late)) return;
    free(late);
    let_go(raised);
}

/* (weak reference), with a function as `self`: calls it, for what was referred to dies, and again where a handler broke
 * it off, be it at its first bytecode. Python prints what leaves such a callback, and continues; what is the script's
 * is raised once the callback has returned. */
static Object *call_at_death(Object *self, Object *reference) {
    (void)reference;
    Raised late = {NULL, NULL, NULL};
    Object *result = NULL;
    for (int begun = 0; begun < MOST_BEGUN && (result = errors.call(self, NULL, 0, NULL)) == NULL; begun++) {
        Raised raised = take_error();
        Object *said = errors.call(errors.is_scripts, &raised.error, 1, NULL);
        if (said) errors.release(said); /* compared only: it is a singleton */
        if (said && said != errors.yes) {
            if (late.error) raise_soon(&late);
            errors.restore(raised.kind, raised.error, raised.trace);
            return NULL;
        }
        if (late.error) let_go(&late);
        late = raised;
        if (said == NULL) { /* a handler struck in there, too */
            let_go(&late);
            late = take_error();
        }
    }
    if (result == NULL) errors.restore(late.kind, late.error, late.trace);
    else if (late.error) raise_soon(&late);
    return result;
}

/* The functions that stand in tables of methods: `name` with what it may raise. */
#define RAISING(name) \
    static Object *name##_or_raise(Object *self, Object *given) { return or_raise(name(self, given)); }
#define RAISING_FAST(name) \
    static Object *name##_or_raise(Object *self, Object *const *given, ptrdiff_t count) { \
        return or_raise(name(self, given, count)); \
    }
