/* Looks up where tensors lie in memory: a part of kernel.c, called with the interpreter's lock held.
 *
 * Through functions that Python and torch export in C, so that neither's headers are needed.
 */

/* DLPack 1.x, https://dmlc.github.io/dlpack/latest/c_api.html */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

/* Mirrored by tensor_reader.py. */
typedef struct {
    void *(*list_item)(void *list, ptrdiff_t at); /* PyList_GetItem: a borrowed reference */
    void *(*type_of)(void *object);               /* PyObject_Type: a new one */
    void (*release)(void *object);                /* Py_DecRef */
    void (*clear_error)(void);                    /* PyErr_Clear */
    int (*describe)(void *tensor, DLTensor *out); /* dltensor_from_py_object_no_sync */
    void *(*unlock)(void);                        /* PyEval_SaveThread */
    void (*lock)(void *state);                    /* PyEval_RestoreThread */
    void *none, *tensor_type, *parameter_type;
} Python;

static int kind_of(const DLTensor *tensor) {
    if (tensor->lanes != 1) return SPECIAL;
    if (tensor->code == 2 && tensor->bits == 16) return F16;
    if (tensor->code == 2 && tensor->bits == 32) return F32;
    if (tensor->code == 2 && tensor->bits == 64) return F64;
    if (tensor->code == 4 && tensor->bits == 16) return BF16;
    if (tensor->code == 5 && tensor->bits == 64) return F32 | COMPLEX;
    if (tensor->code == 5 && tensor->bits == 128) return F64 | COMPLEX;
    return SPECIAL;
}

/* Number of elements, -1 when they do not fill one piece of memory without gaps or overlap. */
static int64_t dense_size(const DLTensor *tensor) {
    int64_t size = 1;
    int is_contiguous = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        is_contiguous &= tensor->shape[d] == 1 || tensor->strides[d] == size;
        size *= tensor->shape[d];
    }
    if (is_contiguous || size == 0) return size;
    /* Permuted, channels last: the next stride is the product of the sizes so far, in some order. */
    int64_t covered = 1;
    while (covered < size) {
        int found = 0;
        for (int d = 0; d < tensor->ndim && !found; d++)
            if (tensor->shape[d] != 1 && tensor->strides[d] == covered) {
                covered *= tensor->shape[d];
                found = 1;
            }
        if (!found) return -1;
    }
    return covered == size ? size : -1;
}

static int classify(const Python *python, void *object, uint64_t *pointer, int64_t *size) {
    DLTensor tensor;
    if (object == python->none) return MISSING;
    void *type = python->type_of(object);
    python->release(type);
    if (type != python->tensor_type && type != python->parameter_type) return SPECIAL;
    if (python->describe(object, &tensor)) {
        python->clear_error();
        return SPECIAL;
    }
    int64_t elements = dense_size(&tensor);
    if (elements == 0) return MISSING;
    if (tensor.device_type != 1 || elements < 0 || tensor.data == NULL) return SPECIAL;
    int kind = kind_of(&tensor);
    *pointer = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    *size = kind & COMPLEX ? 2 * elements : elements;
    return kind;
}

/* Fill the job from a list of tensors. A kind of KNOWN_SPECIAL stays; whoever set it knows better. */
EXPORT void nanscope_gather(Job *job, const Python *python, void *list) {
    uint64_t *pointers = (uint64_t *)job->pointers;
    int64_t *sizes = (int64_t *)job->sizes;
    uint8_t *kinds = (uint8_t *)job->kinds;
    job->missing = job->special = job->complex_count = job->elements = 0;
    for (int64_t i = 0; i < job->count; i++) {
        void *object = python->list_item(list, i);
        if (kinds[i] == KNOWN_SPECIAL && object != python->none) {
            job->special++;
            continue;
        }
        int kind = classify(python, object, &pointers[i], &sizes[i]);
        kinds[i] = (uint8_t)kind;
        job->missing += kind == MISSING;
        job->special += kind == SPECIAL;
        if (kind != MISSING && kind != SPECIAL) {
            job->complex_count += (kind & COMPLEX) != 0;
            job->elements += sizes[i];
        }
    }
}

/* Elements up to which a pass is shorter than giving the interpreter's lock away may become. */
enum { KEEPS_THE_LOCK = 32768 };

/* Gather and measure; called with the interpreter's lock, which a long pass gives away. Complex tensors have to
 * be looked at by the caller first: then nothing is measured, and 0 returned. */
EXPORT int nanscope_measure_list(Job *job, const Python *python, void *list) {
    nanscope_gather(job, python, list);
    if (job->complex_count) return 0;
    void *state = job->elements > KEEPS_THE_LOCK ? python->unlock() : NULL;
    nanscope_statistics(job);
    if (state != NULL) python->lock(state);
    return 1;
}
