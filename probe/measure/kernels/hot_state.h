/* What is known of the loop that C follows, and of the step under way: a part of hot.h. */
#include <time.h>

typedef void Object; /* a Python object */

enum { MAX_ARGUMENTS = 16, MAX_OUTPUTS = 8, MAX_MICRO_STEPS = 32, MAX_GROUPS = 32, MAX_AMBIENT = 8, MAX_SCALARS = 8 };
enum { KEPT_STEPS = 8, SITE_FRAMES = 3, STACK_FRAMES = 32, WRAPPING_FRAMES = 4 };
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
    Object *(*new_int)(unsigned long long);
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
    Object *name_requires_grad, *name_grad_fn, *name_hooks, *name_register, *name_number, *name_lr,
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
    uint64_t (*next_sequence_number)(void);
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
    Object *loss_core;   /* type of the node under its constant factors */
    Object *synchronises; /* whether DistributedDataParallel averages gradients after it: True or False */
    int64_t argument_count, keyword_count, tensor_count, output_count;
    int64_t looks_at_loss; /* whether the loss's graph says more than its type */
    int64_t graph_kind, line_kind; /* first micro-step with such a graph; with such a graph and this line */
} HotMicroStep;

/* What was learned of the loop, and where records go; mirrored by hot_binding.py. */
typedef struct {
    Object *root, *optimizer, *scaler; /* compared with: they may be gone */
    Object *hook_table;     /* class of the tables of hooks: a dictionary that can be weakly referred to */
    Object *hook_key;       /* its key among the hooks of a tensor */
    Object *task;           /* number of the backward under way */
    Object *random_state;   /* reads the generator, or NULL: the forward draws nothing */
    Object *note_stack;     /* the lines that lead to the step are others than at the one before; or NULL */
    Object *glance;         /* looks at the inputs where parameters are measured, or NULL */
    Object *observe;        /* (module, args, kwargs): has the calls of a sampled forward's modules measured */
    Object *end_observation; /* (output): it has returned */
    Object *collect;        /* takes what they have told; True where the step goes on here */
    Object *add_more;       /* adds it, and what was logged since the backward, to the step's record */
    Object *on_news;        /* called at the end of a backward where `news` is set; returns `news_at_ns` */
    Object *find_outputs;   /* lists the tensors in what a forward returned */
    Object *look_at_loss;   /* (loss, before scaling, boundary, numbers...): (divisor, share, core, further) */
    Object *scalars;        /* further scalars of the step, or NULL */
    Object *take_over;      /* has the rest of the step go the slow way */
    Object *replica;        /* the DistributedDataParallel round the model, or NULL */
    Object *measure;        /* starts to measure gradients before they are clipped, where C does not; or NULL */
    Object *finish;         /* measures and finishes a step, where C does not; or NULL. See `hot_late.h` */
    Object *receive[MAX_MICRO_STEPS * MAX_OUTPUTS]; /* the hooks that are given dL/d(output) */
    /* Questions to torch, first those whose answers do not change while the thread's dispatch keys do not. */
    Object *ambient[MAX_AMBIENT], *ambient_argument[MAX_AMBIENT], *ambient_value[MAX_AMBIENT];
    Object *groups[MAX_GROUPS];
    int64_t group_sizes[MAX_GROUPS];
    Object *const *parameters, *const *frozen;
    const uint64_t *dispatch_keys; /* two words of the training thread: included and excluded keys */
    int64_t ambient_count, told_by_keys, group_count, rate_count, scalar_count, parameter_count, frozen_count;
    int64_t micro_steps, clips, has_no_update, is_distributed;
    int64_t reads_losses; /* whether a loss can be read without waiting for it */
    int64_t bad_loss, bad_gradients, bad_parameters; /* whether they are not finite, as in each step of a fault that lasts */
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
    int64_t *phases;      /* sums of the step under way, see `hot_phases.h`; or NULL */
    const int64_t *waits; /* what this thread has waited for batches, or NULL */
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
    int64_t samples, elements, bytes, output_count;
    double value, raw, divisor, share; /* see step/loss_terms.py; NAN for none */
    HotOutput outputs[MAX_OUTPUTS];
} HotCall;

/* Mirrored by hot_binding.py. */
typedef struct {
    int64_t armed, state, step, slow_at, attention, news, micro_step;
    int64_t beats, steps, own_ns, last_end_ns, step_own_ns, refused, refused_at;
    int64_t input_bytes, free_since_ns, before_backward_ns, frozen_at, samples;
    int64_t news_at_ns; /* when `on_news` is to be called although there is none; 0 for never */
    int64_t has_logged; /* whether `add_more` has something to add that was logged in the middle of the step */
    double total_norm, before_clip, after_clip;
    double accumulation; /* what losses were divided by when that was the number of micro-steps */
    Object *unscaled, *scaled; /* what a GradScaler was given for the backward to come, and what it made of it */
    Object *sink; /* is given dL/d(output) once the slow way has taken the step over; borrowed */
    Object *bell; /* called once, when a backward has given all that is waited for before its end; borrowed */
    int64_t is_marked, mark_version; /* what the marked parameter was after the newest backward of the step */
    uint8_t mark[MARK_BYTES];
} HotState;

static HotApi hot_api;
static HotLoop hot_loop;
static HotState hot;
static uint64_t known_keys[2]; /* dispatch keys with which all questions were answered as learned */
static int64_t times_followed; /* how often a loop was given to C */
static __thread int64_t followed_at; /* the newest of them, on the thread of that loop: its identity may come again */
static int has_known_keys;
static uint64_t known_stack; /* of the step that `note_stack` was called at; 0 for none */
static int64_t nested_updates; /* calls of `step` within the one that is under way: those of `super().step()` */
static KeptInputs hot_kept[KEPT_STEPS * MAX_MICRO_STEPS];
static HotCall hot_calls[MAX_MICRO_STEPS];
static struct {
    int64_t room;
    void **impls;
    const void **gradients;
    uint64_t *pointers;
    int64_t *sizes;
    uint8_t *kinds, *contiguous, *parameter_kinds;
    double *block, *parameter_block;
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
