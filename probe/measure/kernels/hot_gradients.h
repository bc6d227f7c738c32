/* Where the gradients of a list of parameters lie: a part of hot.h.
 *
 * Read through functions that torch exports, without one Python object for a gradient; looked up anew at every
 * step, because `torch.utils.swap_tensors` gives a parameter another implementation.
 */

enum { READ_AHEAD = 8 };
/* Words of a c10::TensorImpl, behind the table of functions and the counts. */
enum { STORAGE = 2, AUTOGRAD_META = 3 };

static void *zeroed(size_t bytes) {
    void *memory = malloc(bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

static int make_room(int64_t count) {
    if (count <= hot_memory.room) return 1;
    size_t n = (size_t)count;
    /* Zeroed, and so touched, now: memory that is new in a step costs a page fault for each 4 KiB. */
    void *fresh[] = {zeroed(n * sizeof(void *)), zeroed(n * sizeof(void *)), zeroed(n * 8), zeroed(n * 8), zeroed(n),
                     zeroed(n * ROWS * sizeof(double)), zeroed(n), zeroed(n), zeroed(n * ROWS * sizeof(double))};
    void *old[] = {hot_memory.impls,      hot_memory.gradients,       hot_memory.pointers,
                   hot_memory.sizes,      hot_memory.kinds,           hot_memory.block,
                   hot_memory.contiguous, hot_memory.parameter_kinds, hot_memory.parameter_block};
    int has_room = 1;
    for (int i = 0; i < 9; i++) has_room &= fresh[i] != NULL;
    for (int i = 0; i < 9; i++) free(has_room ? old[i] : fresh[i]);
    if (!has_room) return 0;
    hot_memory.room = count;
    hot_memory.impls = fresh[0];
    hot_memory.gradients = fresh[1];
    hot_memory.pointers = fresh[2];
    hot_memory.sizes = fresh[3];
    hot_memory.kinds = fresh[4];
    hot_memory.block = fresh[5];
    hot_memory.contiguous = fresh[6];
    hot_memory.parameter_kinds = fresh[7];
    hot_memory.parameter_block = fresh[8];
    return 1;
}

/* torch's number of an element type; 0 where the kernel does not read it. */
static int kind_of_dtype(int32_t type) {
    return type == 6 ? F32 : type == 7 ? F64 : type == 5 ? F16 : type == 15 ? BF16 : 0;
}

/* Permuted tensors, channels last ones: their elements still fill one piece of memory. */
static int is_dense(void *tensor) {
    DLTensor shape = {0};
    int64_t dims = 0;
    if (hot_api.dim(tensor, &dims) || hot_api.sizes(tensor, &shape.shape) || hot_api.strides(tensor, &shape.strides))
        return 0;
    shape.ndim = (int32_t)dims;
    return dense_size(&shape) >= 0;
}

/* Look up one plain tensor; 0 where it must not be read by pointer. An empty one counts as missing. `kinds` is told
 * apart, for those of the gradients are needed when the parameters have been looked up. */
static int find_memory(void *tensor, int64_t at, uint8_t *kinds) {
    void *data = NULL;
    int32_t type = -1, device = -1, layout = -1;
    int64_t size = 0;
    uint8_t is_contiguous = 0;
    /* The layout first: torch complains on stderr where a sparse tensor is asked for its memory. */
    if (hot_api.layout(tensor, &layout) || layout != 0) return 0;
    if (hot_api.device_type(tensor, &device) || device != 0 || hot_api.dtype(tensor, &type)) return 0;
    if (hot_api.numel(tensor, &size) || hot_api.data_ptr(tensor, &data)) return 0;
    int kind = kind_of_dtype(type);
    if (size == 0) kind = MISSING;
    else if (kind == 0 || data == NULL || hot_api.is_contiguous(tensor, &is_contiguous)) return 0;
    else if (!is_contiguous && !is_dense(tensor)) return 0;
    hot_memory.pointers[at] = (uint64_t)(uintptr_t)data;
    hot_memory.sizes[at] = size;
    hot_memory.contiguous[at] = is_contiguous;
    kinds[at] = (uint8_t)kind;
    return 1;
}

static int find_gradient(int64_t at) {
    const void *gradient = hot_memory.gradients[at];
    if (*(void *const *)gradient != hot_api.undefined) return find_memory((void *)gradient, at, hot_memory.kinds);
    hot_memory.pointers[at] = 0;
    hot_memory.sizes[at] = 0;
    hot_memory.kinds[at] = MISSING;
    return 1;
}

/* The word `at` of an object of torch's, to be fetched from ahead and for nothing else: whatever it is, no harm is done. */
INLINE const void *word_of(const void *object, int at) { return ((void *const *)object)[at]; }

/* Fetch what is read of a tensor. */
INLINE void fetch_ahead(const void *impl) {
    for (int line = 0; line < 3; line++) __builtin_prefetch((const char *)impl + LINE * line);
}

/* Fill the job with the gradients of all parameters. From a parameter to the memory of its gradient lead six misses,
 * each of which depends on the one before: those of many parameters are taken side by side, each by its own lag. */
static int find_gradients(Job *job) {
    const int64_t count = job->count;
    void **impls = hot_memory.impls;
    for (int64_t i = 0; i < count + 4 * READ_AHEAD; i++) {
        const int64_t meta = i - READ_AHEAD, grad = i - 2 * READ_AHEAD, storage = i - 3 * READ_AHEAD;
        if (i + READ_AHEAD < count) __builtin_prefetch(hot_loop.parameters[i + READ_AHEAD]);
        if (i < count) {
            impls[i] = *(void **)handle_of(hot_loop.parameters[i]);
            __builtin_prefetch((const char *)impls[i] + 16);
        }
        if (meta >= 0 && meta < count) __builtin_prefetch(word_of(impls[meta], AUTOGRAD_META));
        if (grad >= 0 && grad < count) {
            hot_memory.gradients[grad] = hot_api.grad(impls[grad]);
            fetch_ahead(*(char *const *)hot_memory.gradients[grad]);
        }
        if (storage >= 0 && storage < count)
            __builtin_prefetch(word_of(*(void *const *)hot_memory.gradients[storage], STORAGE));
        if (i >= 4 * READ_AHEAD && !find_gradient(i - 4 * READ_AHEAD)) return 0;
    }
    job->missing = job->elements = 0;
    for (int64_t i = 0; i < count; i++) {
        job->missing += hot_memory.kinds[i] == MISSING;
        job->elements += hot_memory.sizes[i];
    }
    return 1;
}

/* Measure what was looked up; a long pass gives Python's lock away, and holds the tensors meanwhile. */
static void measure_held(Job *job) {
    if (job->elements <= LONG_PASS) {
        nanscope_statistics(job);
        return;
    }
    int64_t held = 0;
    for (; held < job->count; held++) {
        hot_memory.impls[held] = NULL;
        if (job->kinds[held] == MISSING) continue;
        if (hot_api.new_handle((void *)hot_memory.gradients[held], &hot_memory.impls[held])) break;
    }
    void *state = held == job->count ? hot_api.unlock() : NULL;
    nanscope_statistics(job);
    if (state) hot_api.lock(state);
    for (int64_t i = 0; i < held; i++)
        if (hot_memory.impls[i]) hot_api.delete_handle(hot_memory.impls[i]);
}

/* Look up all parameters, side by side as their gradients; 0 where some must not be read: those count as missing. */
static int find_parameters(void) {
    const int64_t count = hot_loop.parameter_count;
    int is_found = 1;
    for (int64_t i = 0; i < count + 3 * READ_AHEAD; i++) {
        const int64_t storage = i - 2 * READ_AHEAD, at = i - 3 * READ_AHEAD;
        if (i + READ_AHEAD < count) __builtin_prefetch(hot_loop.parameters[i + READ_AHEAD]);
        if (i < count) fetch_ahead(*(void **)handle_of(hot_loop.parameters[i]));
        if (storage >= 0 && storage < count)
            __builtin_prefetch(word_of(*(void **)handle_of(hot_loop.parameters[storage]), STORAGE));
        if (at < 0 || find_memory(handle_of(hot_loop.parameters[at]), at, hot_memory.parameter_kinds)) continue;
        hot_memory.parameter_kinds[at] = MISSING;
        is_found = 0;
    }
    return is_found;
}

/* L2 norms of the parameters themselves; keeps what was measured of the gradients. */
static int measure_parameters(void) {
    Job job = {.count = hot_loop.parameter_count, .pointers = hot_memory.pointers, .sizes = hot_memory.sizes,
               .kinds = hot_memory.parameter_kinds, .block = hot_memory.parameter_block};
    if (!find_parameters()) return 0;
    nanscope_statistics(&job);
    return (job.nonfinite != 0) == hot_loop.bad_parameters;
}
